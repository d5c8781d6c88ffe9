// The tabs of one browser, which share a stream: all of them work, whatever happens to the one that leads.
import assert from "node:assert/strict";
import {
  allSent,
  desktop,
  live,
  newBrowser,
  newGroup,
  openTab,
  post,
  remember,
  say,
  shows,
  stored,
} from "./harness.mjs";
import { withPlainBrowser } from "./plain.mjs";

/** Counts streams: how many there have been, and which tabs have one. */
function streamsOf(context) {
  const open = new Map();
  const counts = { begun: 0, leaders: () => [...open.values()].filter((tab) => !tab.isClosed()) };
  context.on("request", (r) => {
    if (!r.url().endsWith("/Subscribe")) return;
    counts.begun++;
    open.set(r, r.frame().page());
  });
  for (const end of ["requestfinished", "requestfailed"]) context.on(end, (r) => open.delete(r));
  return counts;
}

/** Waits until one tab has the stream, and no other; it may be asked for not to be one. */
async function leader(streams, not) {
  for (const end = Date.now() + 60_000; ; await new Promise((done) => setTimeout(done, 50))) {
    const tabs = streams.leaders();
    if (tabs.length === 1 && tabs[0] !== not) return tabs[0];
    assert.ok(Date.now() < end, `${tabs.length} tabs have a stream`);
  }
}

/** Tabs of one person at one chat, in a browser of their own if none is named. */
async function tabsOf(user, other, count, context) {
  const chatId = await newGroup(user, "Tabs", [other]);
  context ??= await newBrowser(desktop);
  await remember(context, user);
  await context.addInitScript(tellOfTheft);
  const streams = streamsOf(context);
  const tabs = [];
  for (let n = 0; n < count; n++) {
    const tab = await openTab(context, `/#/${chatId}`);
    await live(tab);
    await tab.getByText("The beginning of the chat").waitFor();
    tabs.push(tab);
  }
  return { chatId, context, streams, tabs };
}

/** What is written in each tab is in all, by one stream: over HTTP/1.1 a browser has six connections to a server. */
export async function sevenTabs() {
  const { chatId, context, streams, tabs } = await tabsOf("sina", "sven", 7);
  const expected = [];
  for (const [n, tab] of tabs.entries()) {
    expected.push(`tab ${n}`);
    await say(tab, expected.at(-1));
    await allSent(tab);
  }
  await post("sven", chatId, "seven?");
  expected.push("seven?");
  for (const tab of tabs) await shows(tab, expected);
  assert.deepEqual(await stored("sven", chatId), expected);
  assert.equal(streams.begun, 1);
  await context.close();
}

/** The tab that leads is closed while messages come and go. */
export async function leaderClosed() {
  const { chatId, context, streams, tabs } = await tabsOf("lena", "lars", 3);
  const first = await leader(streams);
  const rest = tabs.filter((tab) => tab !== first);
  await say(first, "before");
  await shows(rest[0], ["before"]);
  await say(rest[0], "while");
  await Promise.all([first.close(), say(rest[1], "it"), post("lars", chatId, "closes")]);
  await leader(streams, first);
  for (const tab of rest) await allSent(tab);
  await say(rest[1], "after");
  await allSent(rest[1]);
  const expected = await stored("lars", chatId);
  assert.deepEqual([...expected].sort(), ["after", "before", "closes", "it", "while"]);
  for (const tab of rest) await shows(tab, expected);
  assert.equal(streams.begun, 2);
  await context.close();
}

/** The tab that leads is frozen: it lets another one lead before, and follows once it is thawed. */
export const leaderFrozen = () =>
  withPlainBrowser(async ({ context }) => {
    const { chatId, streams, tabs } = await tabsOf("fred", "fina", 2, context);
    const [frozen, other] = tabs;
    assert.equal(await leader(streams), frozen);
    await say(other, "before");
    await allSent(other);
    const set = await lifecycle(frozen);
    await set("frozen");
    await leader(streams, frozen);
    await post("fina", chatId, "while");
    await say(other, "it is frozen");
    await allSent(other);
    const expected = await stored("fina", chatId);
    assert.deepEqual([...expected].sort(), ["before", "it is frozen", "while"]);
    await shows(other, expected);

    await set("active");
    await frozen.bringToFront();
    await shows(frozen, expected);
    expected.push("thawed");
    await say(frozen, "thawed");
    for (const tab of tabs) await shows(tab, expected);
    assert.deepEqual(await stored("fina", chatId), expected);
    assert.equal(streams.begun, 2);
  });

/** A tab that is alone is frozen, and catches up. */
export const aloneFrozen = () =>
  withPlainBrowser(async ({ context }) => {
    const { chatId, streams, tabs } = await tabsOf("alma", "axel", 1, context);
    const cover = await context.newPage();
    const set = await lifecycle(tabs[0]);
    await set("frozen");
    await post("axel", chatId, "while");
    await cover.waitForTimeout(2000);
    await set("active");
    await cover.close();
    await shows(tabs[0], ["while"]);
    await say(tabs[0], "thawed");
    await allSent(tabs[0]);
    await shows(tabs[0], ["while", "thawed"]);
    assert.equal(streams.begun, 2);
  });

/** Freezes and thaws a tab that another one hides. */
async function lifecycle(tab) {
  const page = await tab.context().newCDPSession(tab);
  await tab.waitForFunction(() => document.visibilityState === "hidden", undefined, { polling: 50 });
  await tab.evaluate(() => document.addEventListener("freeze", () => (window.wasFrozen = true)));
  return async (state) => {
    await page.send("Page.setWebLifecycleState", { state });
    if (state === "active") assert.ok(await tab.evaluate(() => window.wasFrozen), "it was not frozen");
  };
}

/** In the page: a lock that is taken from a tab, as from one that hangs, is a problem. */
function tellOfTheft() {
  const request = navigator.locks.request.bind(navigator.locks);
  navigator.locks.request = (name, options, ...rest) => {
    if (options.steal) console.error("a lock was taken from another tab");
    return request(name, options, ...rest);
  };
}

/** Two minutes in which nobody writes: the stream that was opened first brings the message after them. */
export async function idle() {
  const { chatId, context, streams, tabs } = await tabsOf("ida", "ivo", 1);
  await tabs[0].waitForTimeout(120_000);
  await post("ivo", chatId, "still there?");
  await shows(tabs[0], ["still there?"]);
  assert.equal(streams.begun, 1);
  await context.close();
}
