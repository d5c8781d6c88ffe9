// Sign-in with codes: names, sessions and their ends, and what a browser keeps then.
import assert from "node:assert/strict";
import {
  accessible,
  allSent,
  codeFor,
  desktop,
  live,
  openTab,
  origin,
  patience,
  phone,
  say,
  shows,
  visit,
} from "./harness.mjs";

/** Signs in with the code that the server has written into its log, or is refused. */
export async function withCode(tab, identifier, name, { refused = false } = {}) {
  await tab.getByLabel("E-mail address").fill(identifier);
  const field = tab.getByLabel("Code for");
  const early = tab.getByText(/Try again in \d+ (seconds|minutes)/);
  for (const end = Date.now() + patience + 60_000; ; ) { // an address gets one code a minute
    await tab.getByRole("button", { name: "Send a code" }).click();
    await field.or(early).waitFor();
    if (await field.isVisible()) break;
    assert.ok(Date.now() < end, "no code came");
    await tab.waitForTimeout(2000);
  }
  const code = codeFor(identifier);
  if (name) {
    await field.fill(code === "000000" ? "000001" : "000000");
    await tab.getByRole("button", { name: "Sign in", exact: true }).click();
    await tab.getByText("This code is wrong").waitFor();
    await accessible(tab, name);
  }
  await field.fill(code);
  await tab.getByRole("button", { name: "Sign in", exact: true }).click();
  if (!refused) await live(tab);
}

async function called(tab, fields, name) {
  await tab.getByRole("button", { name: "Your account" }).click();
  const dialog = tab.getByRole("dialog");
  for (const [label, text] of Object.entries(fields)) await dialog.getByLabel(label).fill(text);
  await tab.getByRole("button", { name: "Save" }).click();
  await tab.getByText("Saved", { exact: true }).waitFor();
  if (name) await accessible(tab, name);
  await tab.keyboard.press("Escape");
}

/** What the browser keeps: how many records of each kind, and how many tokens of sessions. */
export const keeps = (tab) =>
  tab.evaluate(async () => {
    const kept = { tokens: Object.keys(localStorage).filter((k) => k.startsWith("parley/tokens/")).length };
    const result = (r) => new Promise((done) => (r.onsuccess = () => done(r.result)));
    for (const { name } of await indexedDB.databases()) {
      const db = await result(indexedDB.open(name));
      const tx = db.transaction(db.objectStoreNames);
      for (const store of ["chats", "messages", "outbox"]) kept[store] = await result(tx.objectStore(store).count());
      kept.profiles = await result(tx.objectStore("meta").count(IDBKeyRange.bound("profile/", "profile/~")));
      db.close();
    }
    return kept;
  });

/** The tokens of the session, of which there is one; some are replaced by others if they are given. */
export const tokensIn = (tab, change = {}) =>
  tab.evaluate((change) => {
    const key = Object.keys(localStorage).find((k) => k.startsWith("parley/tokens/"));
    const tokens = JSON.parse(localStorage.getItem(key));
    localStorage.setItem(key, JSON.stringify({ ...tokens, ...change }));
    return tokens;
  }, change);

/** Two people sign in with codes, are known by name, end sessions, and lose nothing by it. */
export async function codes() {
  const { ann, ben } = await acquainted();
  const expected = ["hello"];
  const second = await refreshedOnce(ann, expected);
  const other = await revoked(ann, second, expected);
  await withCode(ann, "ann@example.com");
  await ann.getByRole("link", { name: /Benjamin/ }).click();
  expected.push("later");
  await allSent(ann);
  for (const tab of [ann, ben]) await shows(tab, expected);
  const sessions = await endedByToken(ann);
  await everywhere(other, ben, sessions);
}

const question = (tab) => tab.getByRole("dialog", { name: "What is your name?" });

export const staysNameless = (tab) => question(tab).getByRole("button", { name: "Skip" }).click();

/** Somebody without a name is asked for it once, and may skip that. */
async function askedForName(ann, ben) {
  await question(ann).waitFor();
  await accessible(ann, "name");
  await question(ann).getByLabel("Name").fill("Ann the First");
  await question(ann).getByRole("button", { name: "Save" }).click();
  await ann.getByRole("heading", { name: "Ann the First" }).waitFor();
  await staysNameless(ben);
  await ben.reload();
  await live(ben);
  await ben.waitForTimeout(1000);
  assert.equal(await question(ben).count(), 0, "the question comes once");
}

/** Two people with names and handles, who have a chat. */
async function acquainted() {
  const ann = await visit(desktop);
  await withCode(ann, "Ann@Example.com", "sign-in-code");
  const ben = await visit(phone);
  await withCode(ben, "+49 151 2345678");
  await askedForName(ann, ben);
  await called(ann, { Name: "Ann", "About you": "Tea.", "Handle, by which": "@Ann.Tea" }, "account");
  await ann.getByRole("heading", { name: "Ann" }).waitFor();
  await called(ben, { Name: "Ben", "Handle, by which": "ben.tea" }, "account-phone");

  await ann.getByRole("button", { name: "New chat" }).click();
  await ann.getByLabel("Person", { exact: true }).fill("@nobody.tea");
  await ann.getByRole("button", { name: "Begin" }).click();
  await ann.locator("dialog .error:not(:empty)").waitFor();
  await ann.getByLabel("Person", { exact: true }).fill("@Ben.Tea");
  await ann.getByRole("button", { name: "Begin" }).click();
  await ann.getByRole("heading", { name: /Ben.*@ben\.tea/ }).waitFor();
  await say(ann, "hello");
  await ben.getByRole("link", { name: /Ann.*1 unread/s }).click();
  await shows(ben, ["hello"]);
  await ben.getByRole("link", { name: "Back to the chats" }).click();
  await called(ben, { Name: "Benjamin" });
  await ann.getByRole("heading", { name: "Benjamin" }).waitFor(); // by a frame
  await ben.getByRole("link", { name: /Ann/ }).click();
  return { ann, ben };
}

/**
 * A token ends in two tabs at once: it is refreshed once. Both tabs open the page anew after that: a page that was open
 * before might refresh too, and lose the answer when it is replaced. A third tab has the lock until both wait for it.
 */
async function refreshedOnce(ann, expected) {
  const context = ann.context();
  const hash = new URL(ann.url()).hash;
  const third = await openTab(context, "/app/licenses.txt");
  const second = await context.newPage();
  await ann.goto("about:blank");
  const { release, waiting } = await lockedBy(third);
  const before = await tokensIn(third, { until: 0 });
  let refreshed = 0;
  context.on("request", (r) => (refreshed += r.url().endsWith("/Refresh")));
  await context.addInitScript(seesLate);
  const tabs = [ann, second];
  await Promise.all(tabs.map((tab) => tab.goto(origin + hash)));
  for (const tab of tabs) await tab.getByRole("button", { name: "Your account" }).click(); // which needs a token
  await waiting(2);
  await release();
  for (const tab of tabs) {
    await tab.getByLabel("About you").waitFor();
    await tab.keyboard.press("Escape");
    await tab.getByRole("heading", { name: "Benjamin" }).waitFor();
    await live(tab);
    await shows(tab, expected);
  }
  await say(second, "refreshed");
  expected.push("refreshed");
  await allSent(second);
  const after = await tokensIn(third);
  assert.equal(refreshed, 1);
  for (const field of ["access", "refresh"]) assert.notEqual(after[field], before[field]);
  await third.close();
  return second;
}

/** Has a tab take the lock for the refresh of the tokens that there are. */
async function lockedBy(tab) {
  const { refresh } = await tokensIn(tab);
  await tab.evaluate((refresh) => {
    const key = Object.keys(localStorage).find((k) => k.startsWith("parley/tokens/"));
    window.lock = `${key}/${refresh}`;
    return new Promise((taken) =>
      navigator.locks.request(window.lock, () => {
        taken();
        return new Promise((release) => (window.release = release));
      }),
    );
  }, refresh);
  const wait = async (count) =>
    (await navigator.locks.query()).pending.filter(({ name }) => name === window.lock).length === count;
  return {
    release: () => tab.evaluate(() => window.release()),
    waiting: (count) => tab.waitForFunction(wait, count, { polling: 50 }),
  };
}

/** In the page: tokens that another tab stores are visible some time after the lock is free, as browsers may have it. */
function seesLate() {
  const shared = (key) => key?.startsWith("parley/tokens/");
  const visible = new Map(Object.entries(localStorage));
  const { getItem, setItem, removeItem } = Storage.prototype;
  Storage.prototype.getItem = function (key) {
    return shared(key) ? (visible.get(key) ?? null) : getItem.call(this, key);
  };
  Storage.prototype.setItem = function (key, text) {
    if (shared(key)) visible.set(key, text);
    setItem.call(this, key, text);
  };
  Storage.prototype.removeItem = function (key) {
    if (shared(key)) visible.delete(key);
    removeItem.call(this, key);
  };
  addEventListener("storage", (e) => {
    if (!e.isTrusted || !shared(e.key)) return;
    e.stopImmediatePropagation();
    const { key, oldValue, newValue } = e;
    setTimeout(() => {
      if (newValue === null) visible.delete(key);
      else visible.set(key, newValue);
      dispatchEvent(new StorageEvent("storage", { key, oldValue, newValue }));
    }, 200);
  });
}

/** Another device ends the session, while something is not sent yet. */
async function revoked(ann, second, expected) {
  const other = await visit(phone);
  await withCode(other, "ann@example.com");
  await ann.context().setOffline(true);
  await say(ann, "later");
  await shows(ann, [...expected, "later"]);
  await other.getByRole("button", { name: "Your account" }).click();
  await other.getByText("(here)").waitFor();
  await accessible(other, "sessions-phone");
  await other.getByRole("button", { name: "End the session of" }).click();
  await other.getByRole("button", { name: "End the session of" }).waitFor({ state: "detached" });
  await other.keyboard.press("Escape");
  const out = (tab) => tab.getByRole("button", { name: "Send a code" }).or(tab.getByText("The server does not answer"));
  for (const tab of [ann, second]) await out(tab).waitFor();
  await ann.getByText("A message that was not sent is kept here").waitFor();
  assert.deepEqual(await keeps(ann), { tokens: 0, chats: 0, messages: 0, outbox: 1, profiles: 0 });
  await ann.context().setOffline(false);
  await ann.getByRole("button", { name: "Try again" }).click();
  await accessible(ann, "session-ended");
  await second.close();
  return other;
}

/** A refresh token that is good no more ends the session here; returns who asks for the others. */
async function endedByToken(ann) {
  const { access } = await tokensIn(ann, { refresh: "used", until: 0 });
  await ann.reload();
  await ann.getByText("Your session has ended.").waitFor();
  const sessions = () => fetch(`${origin}/api/v1/auth/sessions`, { headers: { Authorization: `Bearer ${access}` } });
  assert.equal((await (await sessions()).json()).sessions.length, 2);
  return sessions;
}

/** One signs out everywhere, the other one here. */
async function everywhere(other, ben, sessions) {
  const nothing = { tokens: 0, chats: 0, messages: 0, outbox: 0, profiles: 0 };
  await other.getByRole("button", { name: "Your account" }).click();
  await other.getByRole("button", { name: "Sign out everywhere" }).click();
  await other.getByRole("button", { name: "Send a code" }).waitFor();
  assert.equal((await sessions()).status, 401);
  await live(ben);
  await ben.getByRole("link", { name: "Back to the chats" }).click();
  assert.notEqual((await keeps(ben)).messages, 0);
  await ben.getByRole("button", { name: "Sign out" }).click();
  for (const tab of [other, ben]) {
    await tab.getByRole("button", { name: "Send a code" }).waitFor();
    assert.deepEqual(await keeps(tab), nothing);
    await tab.reload();
    await tab.getByRole("button", { name: "Send a code" }).waitFor();
  }
}
