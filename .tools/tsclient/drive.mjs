// Drives programs and pages that stand on the package against a real server, which is killed on the way.
//
//   node drive.mjs SERVER CHROMIUM CHAT-PROGRAM SITE
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, readdirSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { gzipSync } from "node:zlib";
import { chromium } from "playwright-core";
import { Server, until } from "./server.mjs";

const [binary, browserPath, program, site] = process.argv.slice(2);
const server = new Server(binary);
const began = Date.now();
const programs = [];
let browser;
let pages;

/** A chat program of a user; lines are what it printed. */
function chat(user, ...more) {
  const child = spawn("node", [program, `http://${server.address}`, server.token(user), user, ...more], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  programs.push(child);
  const lines = [];
  createInterface({ input: child.stdout }).on("line", (line) => lines.push(line));
  return { lines, say: (text) => child.stdin.write(`${text}\n`), end: () => child.stdin.end(), child };
}

/** Two programs hold a chat, over a kill of the server while both write. */
async function inNode() {
  for (const user of ["alice", "bob"]) await visit(user);
  const bob = chat("bob");
  const alice = chat("alice", "bob");
  const both = (n) => until(() => [alice.lines, bob.lines], () => alice.lines.length >= n && bob.lines.length >= n);
  alice.say("one");
  await both(1);
  bob.say("two");
  await both(2);
  await server.kill();
  for (const text of ["three", "four", "five"]) alice.say(text);
  await server.start();
  await both(5);
  const expected = ["alice: one", "bob: two", "alice: three", "alice: four", "alice: five"];
  assert.deepEqual(alice.lines, expected);
  assert.deepEqual(bob.lines, expected);
  const ended = Promise.all([alice, bob].map(({ child }) => once(child, "exit")));
  alice.end();
  bob.end();
  assert.deepEqual((await ended).map(([code]) => code), [0, 0], "the programs end by themselves");
}

const as = (user) => ({ headers: { Authorization: `Bearer ${server.token(user)}` } });
const visit = async (user) => {
  // A user exists from the first call on.
  assert.equal((await fetch(`http://${server.address}/api/v1/chats`, as(user))).status, 200);
};

function serve() {
  const types = { html: "text/html; charset=utf-8", js: "text/javascript" };
  return createServer((req, res) => {
    const path = new URL(req.url, "http://x").pathname;
    const name = path === "/" ? "/index.html" : path;
    res.setHeader("Content-Security-Policy", `default-src 'none'; script-src 'self'; connect-src http://${server.address}`);
    try {
      const body = readFileSync(join(site, name));
      res.setHeader("Content-Type", types[name.split(".").pop()] ?? "application/octet-stream").end(body);
    } catch {
      res.writeHead(404).end();
    }
  });
}

const patience = 60_000;
const texts = (tab, list = "ol") => tab.locator(`${list} li`).allTextContents();
const shows = async (tab, expected) => {
  const now = async () => JSON.stringify(await texts(tab)) === JSON.stringify(expected);
  for (const end = Date.now() + patience; !(await now()); ) {
    if (Date.now() > end) assert.deepEqual(await texts(tab), expected);
    await new Promise((done) => setTimeout(done, 50));
  }
};
const say = async (tab, text) => {
  await tab.fill("input", text);
  await tab.click("button");
};

/** Two browsers chat, in the page of fifteen lines. */
async function inPages(origin) {
  const open = async (user, other) => {
    const tab = await (await browser.newContext()).newPage();
    tab.setDefaultTimeout(patience);
    const hash = new URLSearchParams({ base: `http://${server.address}`, token: server.token(user), user, other });
    await tab.goto(`${origin}/#${hash}`);
    return tab;
  };
  const alice = await open("alice", "bob");
  await shows(alice, []);
  await say(alice, "hello");
  await shows(alice, ["hello"]);
  const bob = await open("bob", "alice");
  await shows(bob, ["hello"]);
  await say(bob, "hi");
  for (const tab of [alice, bob]) await shows(tab, ["hello", "hi"]);
  for (const tab of [alice, bob]) await tab.context().close();
}

/** Seven tabs of one browser: one stream, whatever happens to the tab that has it. */
async function inTabs(origin) {
  for (const user of ["cyd", "dan"]) await visit(user);
  const made = await fetch(`http://${server.address}/api/v1/chats`, {
    method: "POST",
    headers: { ...as("cyd").headers, "Content-Type": "application/json" },
    body: JSON.stringify({ type: "CHAT_TYPE_GROUP", name: "Cake", memberIds: ["dan"] }),
  });
  assert.equal(made.status, 201);
  const context = await browser.newContext();
  context.setDefaultTimeout(patience);
  const streams = new Map(); // open ones, by tab
  const hash = new URLSearchParams({ base: `http://${server.address}`, token: server.token("cyd"), user: "cyd" });
  const tabs = [];
  const leaders = () => tabs.filter((tab) => streams.get(tab) > 0);
  for (let n = 0; n < 7; n++) {
    const tab = await context.newPage();
    const count = (by) => (req) => {
      if (req.url().endsWith("/Subscribe")) streams.set(tab, (streams.get(tab) ?? 0) + by);
    };
    tab.on("request", count(1));
    tab.on("requestfailed", count(-1));
    tab.on("requestfinished", count(-1));
    await tab.goto(`${origin}/tabs.html#${hash}`);
    tabs.push(tab);
  }
  const expected = [];
  const all = async () => {
    for (const tab of tabs) await shows(tab, expected);
  };
  const live = async (tab) => tab.waitForFunction(() => document.getElementById("status").textContent === "live");
  for (const tab of tabs) {
    await live(tab);
    expected.push(`from ${expected.length + 1}`);
    await say(tab, expected.at(-1));
  }
  await all();
  assert.equal(leaders().length, 1, "one tab has the stream");
  await tabs[6].waitForFunction(() => document.getElementById("unread").textContent === "0");
  assert.equal(await tabs[6].locator("#members").textContent(), "cyd dan");

  // The tab with the stream is closed.
  const first = leaders()[0];
  tabs.splice(tabs.indexOf(first), 1);
  await first.close();
  streams.delete(first);
  expected.push("after the first");
  await say(tabs[2], expected.at(-1));
  await all();
  assert.equal(leaders().length, 1);

  // The server dies; messages are written without it, and one tab is reloaded.
  await server.kill();
  for (const text of ["a", "b", "c", "d", "e"]) {
    expected.push(text);
    await say(tabs[1], text);
  }
  await tabs[1].waitForFunction(() => document.querySelectorAll("ul li").length === 5);
  await tabs[1].reload();
  await tabs[1].waitForFunction(() => document.querySelectorAll("ul li").length === 5);
  await server.start();
  await all();
  for (const tab of tabs) assert.deepEqual(await texts(tab, "ul"), []);
  const stored = await fetch(`http://${server.address}/api/v1/chats`, as("dan")).then((r) => r.json());
  const chatId = stored.overviews[0].chat.chatId;
  const list = await fetch(`http://${server.address}/api/v1/chats/${chatId}/messages?pageSize=100`, as("dan")).then((r) => r.json());
  assert.deepEqual(list.messages.map((m) => m.content), expected, "nothing is lost, nothing is there twice");
  await context.close();
}

try {
  await server.start();
  await inNode();
  pages = serve();
  pages.listen(0, "127.0.0.1");
  await once(pages, "listening");
  const origin = `http://localhost:${pages.address().port}`;
  browser = await chromium.launch({
    executablePath: browserPath,
    args: [...(process.getuid?.() === 0 ? ["--no-sandbox"] : []), "--disable-dev-shm-usage"],
  });
  await inPages(origin);
  await inTabs(origin);
  const size = readdirSync(join(site, "assets"))
    .filter((f) => !f.startsWith("tabs") && f.endsWith(".js"))
    .reduce((sum, f) => sum + gzipSync(readFileSync(join(site, "assets", f))).length, 0);
  const seconds = ((Date.now() - began) / 1000).toFixed(1);
  console.log(`tsclient: ok, in Node.js and Chromium ${browser.version()}, ${Math.round(size / 1024)} KB for a page, compressed, ${seconds} s`);
} finally {
  await browser?.close();
  pages?.close();
  for (const p of programs) p.kill();
  server.end();
}
