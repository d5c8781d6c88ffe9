// Tokens that end: one that somebody pasted, and those of a session while a stream is open.
import assert from "node:assert/strict";
import { createHash, createPrivateKey, randomUUID, sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { staysNameless, tokensIn, withCode } from "./codes.mjs";
import {
  accessible,
  allSent,
  desktop,
  live,
  newBrowser,
  newGroup,
  openTab,
  origin,
  phone,
  post,
  remember,
  say,
  server,
  shows,
  tokenOf,
  visit,
} from "./harness.mjs";

/** A token like another one, but for the seconds that it lives, as the server would make it. */
function tokenFor(seconds, other) {
  const key = createPrivateKey(readFileSync(join(server.data, "auth.key")));
  const raw = Buffer.from(key.export({ format: "jwk" }).x, "base64url");
  const kid = createHash("sha256").update(raw).digest().subarray(0, 8).toString("hex");
  const claims = JSON.parse(Buffer.from(other.split(".")[1], "base64url"));
  const now = Math.floor(Date.now() / 1000);
  const parts = [
    { alg: "EdDSA", typ: "at+jwt", kid },
    { ...claims, iat: now, nbf: now, exp: now + seconds, jti: randomUUID() },
  ];
  const text = parts.map((part) => Buffer.from(JSON.stringify(part)).toString("base64url")).join(".");
  return `${text}.${sign(null, Buffer.from(text), key).toString("base64url")}`;
}

/** A token instead of the demo, and the way out. */
export async function pasted() {
  const chatId = await newGroup("tom", "Post", ["tess"]);
  await post("tess", chatId, "by post");
  const tab = await visit(desktop);
  await tab.getByText("Sign in with a token").click();
  const enter = async (token) => {
    await tab.getByLabel("Token").fill(token);
    await tab.getByRole("button", { name: "Sign in", exact: true }).click();
  };
  await enter("x");
  await tab.getByText("That is no token.").waitFor();
  await enter(tokenOf("tom"));
  await tab.getByRole("link", { name: /Post/ }).click();
  await shows(tab, ["by post"]);
  await tab.getByRole("button", { name: "Sign out" }).click();
  await tab.getByText("Try it as").waitFor();
  await tab.reload();
  await tab.getByText("Try it as").waitFor();
  await tab.context().close();
}

/** A pasted token ends while the stream is open: nothing can renew it, and the page says so. */
export async function pastedEnds() {
  const context = await newBrowser(phone);
  // Long enough for a busy machine to show the page; the scenario waits beside others that take longer.
  await remember(context, "tess", tokenFor(30, tokenOf("tess")));
  const tab = await openTab(context);
  await live(tab);
  await tab.getByText("Your token has ended.").waitFor();
  await accessible(tab, "token-ended-phone");
  await context.close();
}

/**
 * The access token of a session ends while the stream is open: before that, the page renews it and the stream
 * continues; if it cannot, the server ends the stream, and the next one has a new token. Messages continue either way.
 */
export async function sessionRenews() {
  const tab = await visit(desktop);
  await withCode(tab, "tia@example.com");
  await staysNameless(tab);
  const { sub } = JSON.parse(Buffer.from((await tokensIn(tab)).access.split(".")[1], "base64url"));
  const chatId = await newGroup("tilo", "Clock", [sub]);
  const calls = callsOf(tab);
  const began = async (seconds) => {
    calls.forget();
    const { access } = await tokensIn(tab);
    await tokensIn(tab, { access: tokenFor(seconds, access), until: Date.now() + 600_000 });
    await tab.goto(`${origin}/?${seconds}#/${chatId}`);
    await tab.getByText("The beginning of the chat").waitFor();
    await live(tab);
  };
  const expected = [];
  const works = async (...texts) => {
    await live(tab);
    expected.push(...texts);
    await post("tilo", chatId, texts[0]);
    await shows(tab, expected.slice(0, -1));
    await say(tab, texts[1]);
    await allSent(tab);
    await shows(tab, expected);
  };
  await began(45);
  await calls.until("Extend", 1);
  await tab.waitForTimeout(50_000); // over the end of the token, and what servers' clocks may differ by
  assert.deepEqual(calls.made, { Subscribe: 1, Refresh: 1, Extend: 1 });
  await works("extended?", "extended");
  await began(3); // too short for that
  await calls.until("Subscribe", 2);
  await works("anew?", "anew");
  assert.deepEqual(calls.made, { Subscribe: 2, Refresh: 1, Extend: 0 });
  await tab.context().close();
}

/** Counts calls of a tab that succeeded, and streams that were asked for. */
function callsOf(tab) {
  const none = { Subscribe: 0, Refresh: 0, Extend: 0 };
  const calls = {
    made: { ...none },
    forget: () => (calls.made = { ...none }),
    async until(name, count) {
      for (const end = Date.now() + 90_000; calls.made[name] < count; await tab.waitForTimeout(100)) {
        assert.ok(Date.now() < end, `${name} was called ${calls.made[name]} times`);
      }
    },
  };
  const count = (r, stream) => {
    const name = new URL(r.url()).pathname.split("/").at(-1);
    if (name in none && stream === (name === "Subscribe")) calls.made[name]++;
  };
  tab.on("request", (r) => count(r, true));
  tab.on("requestfinished", async (r) => (await r.response())?.ok() && count(r, false));
  return calls;
}
