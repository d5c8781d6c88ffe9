// Drives the page in a real browser against a real server, which is killed and started again on the way.
//
//   node drive.mjs SERVER-BINARY CHROMIUM BUNDLE
import assert from "node:assert/strict";
import { spawn, execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [binary, browserPath, bundlePath] = process.argv.slice(2);
const work = mkdtempSync(join(tmpdir(), "parley-browser-"));
const data = join(work, "data");
const patience = 30_000;
const began = Date.now();

let server;
async function start(listen) {
  server = spawn(binary, ["--listen", listen, "--kafka-listen", "127.0.0.1:0", "--data-dir", data], { stdio: ["ignore", "pipe", "pipe"] });
  let log = "";
  server.stderr.on("data", (b) => (log = (log + b).slice(-4000)));
  for await (const line of createInterface({ input: server.stdout })) {
    const found = line.match(/listening on http:\/\/([^,\s]+),/);
    if (found) {
      server.stdout.resume();
      return found[1];
    }
  }
  throw new Error(`the server did not start: ${log}`);
}
async function kill() {
  const gone = once(server, "exit");
  server.kill("SIGKILL");
  await gone;
}
const tokenOf = (user) => execFileSync(binary, ["--data-dir", data, "token", user], { encoding: "utf8" }).trim();

// The page comes from an origin of its own, so every call of the API crosses origins.
function page(base) {
  const html = `<!doctype html><meta charset="utf-8"><title>Parley</title><body data-server="${base}">
<form id="sign-in"><input id="token" aria-label="token"><button>Sign in</button></form><p id="state">out</p>
<button id="create">Create chat</button><p id="chat"></p>
<form id="send"><input id="content" aria-label="content"><button>Send</button></form><p id="unsent">0</p>
<ol id="log"></ol><script src="/page.js"></script>`;
  const script = readFileSync(bundlePath);
  return createServer((req, res) => {
    res.setHeader("Content-Security-Policy", `default-src 'none'; script-src 'self'; connect-src ${base}`);
    if (req.url === "/page.js") res.setHeader("Content-Type", "text/javascript").end(script);
    else if (req.url === "/") res.setHeader("Content-Type", "text/html; charset=utf-8").end(html);
    else res.writeHead(404).end();
  });
}

const problems = [];
let browser;
let pages;
try {
  const address = await start("127.0.0.1:0");
  const base = `http://${address}`;
  const alice = tokenOf("alice");
  const bob = tokenOf("bob");
  pages = page(base);
  pages.listen(0, "127.0.0.1");
  await once(pages, "listening");
  const port = pages.address().port;

  browser = await chromium.launch({
    executablePath: browserPath,
    args: [...(process.getuid?.() === 0 ? ["--no-sandbox"] : []), "--disable-dev-shm-usage", "--host-resolver-rules=MAP parley.test 127.0.0.1"],
  });
  const tab = await browser.newPage();
  tab.setDefaultTimeout(patience);
  tab.on("pageerror", (e) => problems.push(e.message));
  const text = (id) => tab.locator(`#${id}`).textContent();
  const until = (id, value) => tab.waitForFunction(([i, v]) => document.getElementById(i).textContent === v, [id, value]);
  const lines = async (n) => {
    await tab.waitForFunction((n) => document.querySelectorAll("#log li").length >= n, n);
    return tab.locator("#log li").allTextContents();
  };
  const say = async (content) => {
    await tab.fill("#content", content);
    await tab.click("#send button");
  };
  const bobSays = async (content) => {
    const res = await fetch(`${base}/api/v1/chats/${await text("chat")}/messages`, {
      method: "POST",
      headers: { Authorization: `Bearer ${bob}`, "Content-Type": "application/json" },
      body: JSON.stringify({ content }),
    });
    assert.equal(res.status, 201);
  };

  await tab.goto(`http://localhost:${port}/`);
  await tab.fill("#token", "not a token");
  await tab.click("#sign-in button");
  await tab.waitForFunction(() => document.getElementById("state").textContent.includes("token is not valid"));
  await tab.fill("#token", alice);
  await tab.click("#sign-in button");
  await until("state", "live");
  await tab.click("#create");
  await tab.waitForFunction(() => document.getElementById("chat").textContent.startsWith("chat_"));
  await say("one");
  await lines(1);
  await bobSays("two");
  assert.deepEqual(await lines(2), ["1 alice: one", "2 bob: two"]);

  // A message is written while nothing is there to take it.
  await kill();
  await until("state", "away");
  await say("three");
  await until("unsent", "1");
  assert.equal(await start(address), address);
  await until("state", "live");
  await until("unsent", "0");
  await lines(3);
  await bobSays("four");
  assert.deepEqual(await lines(4), ["1 alice: one", "2 bob: two", "3 alice: three", "4 bob: four"]);

  // What was committed while the page was cut off comes with the next stream. Killed again, because a page that is
  // offline in the tools' sense keeps streams that are open.
  await kill();
  await until("state", "away");
  await tab.context().setOffline(true);
  await start(address);
  await bobSays("five");
  await bobSays("six");
  await tab.context().setOffline(false);
  assert.deepEqual((await lines(6)).slice(4), ["5 bob: five", "6 bob: six"]);
  await until("state", "live");

  // REST from another origin: all methods pass the preflight, and the headers that matter can be read.
  const rest = (method, path, body) =>
    tab.evaluate(
      async ([url, method, bearer, body]) => {
        const headers = { Authorization: `Bearer ${bearer}`, "Idempotency-Key": "k" };
        if (body) headers["Content-Type"] = "application/json";
        const res = await fetch(url, { method, headers, body });
        return { status: res.status, replay: res.headers.get("X-Idempotent-Replay"), tag: res.headers.get("ETag") !== null };
      },
      [base + path, method, alice, body && JSON.stringify(body)],
    );
  const direct = { type: "CHAT_TYPE_DIRECT", memberIds: ["bob"] };
  assert.deepEqual(await rest("POST", "/api/v1/chats", direct), { status: 201, replay: null, tag: false });
  assert.deepEqual(await rest("POST", "/api/v1/chats", direct), { status: 200, replay: "true", tag: false });
  assert.deepEqual(await rest("GET", "/api/v1/chats"), { status: 200, replay: null, tag: true });
  const chat = `/api/v1/chats/${await text("chat")}`;
  for (const [method, path, body] of [["PATCH", chat, { name: "" }], ["DELETE", `${chat}/members/a%20b`]]) {
    assert.equal((await rest(method, path, body)).status, 400, method);
  }

  // A page from elsewhere reaches nothing, not even with the token.
  const stranger = await browser.newPage();
  await stranger.goto(`http://parley.test:${port}/`);
  const outcome = await stranger.evaluate(
    ([url, bearer]) => fetch(url, { headers: { Authorization: `Bearer ${bearer}` } }).then((r) => `status ${r.status}`, (e) => e.name),
    [`${base}/api/v1/chats`, alice],
  );
  assert.equal(outcome, "TypeError");

  // The page of the API shows itself without breaking its own policy.
  const docs = await browser.newPage();
  docs.on("console", (m) => m.type() === "error" && problems.push(m.text()));
  await docs.goto(`${base}/docs`);
  assert.equal(await docs.locator("h1").textContent(), "Parley REST API v1");
  assert.notEqual(await docs.evaluate(() => getComputedStyle(document.body).maxWidth), "none");

  assert.deepEqual(await lines(6), ["1 alice: one", "2 bob: two", "3 alice: three", "4 bob: four", "5 bob: five", "6 bob: six"]);
  assert.deepEqual(problems, []);
  const seconds = ((Date.now() - began) / 1000).toFixed(1);
  console.log(`browser: ok, 6 messages in order over 3 runs of the server, Chromium ${browser.version()}, ${seconds} s`);
} finally {
  await browser?.close();
  pages?.close();
  server?.kill("SIGKILL");
  rmSync(work, { recursive: true, force: true });
}
