// What the scenarios share: the real server, the browser, tabs in it, and what a person does and sees there.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { Server } from "./server.mjs";

export const patience = 60_000; // with whatever is to come to be

/** What was found besides failures: violations of accessibility, of the policy, exceptions. */
export const problems = [];
export const desktop = { viewport: { width: 1100, height: 720 }, colorScheme: "light" };
export const phone = {
  viewport: { width: 390, height: 760 },
  colorScheme: "dark",
  isMobile: true,
  hasTouch: true,
};
export let server;
export let browser;
export let origin;
export let browserPath;
export const browserArgs = [
  ...(process.getuid?.() === 0 ? ["--no-sandbox"] : []),
  "--disable-dev-shm-usage",
];
export let shots; // the folder for pictures, if they are wanted
let axe;
let log = ""; // of the server

export async function setUp(binary, chromiumPath, modules, folder) {
  browserPath = chromiumPath;
  shots = folder;
  axe = readFileSync(join(modules, "axe-core/axe.min.js"), "utf8");
  server = new Server(binary);
  await startServer();
  origin = `http://${server.address}`;
  browser = await chromium.launch({ executablePath: browserPath, args: browserArgs });
}

export async function tearDown() {
  await browser?.close();
  server?.end();
}

export async function startServer() {
  await server.start();
  server.process.stderr.on("data", (b) => (log += b));
}

/** The code that the server has written into its log for an address or number. */
export function codeFor(identifier) {
  const lines = log.matchAll(/a code to sign in with" identifier=(\S+) code=(\d{6})/g);
  const wanted = identifier.replaceAll(" ", "").toLowerCase();
  return [...lines].findLast(([, to]) => to === wanted)[2];
}

/** Does what an operator does at the command line. */
export function operator(...args) {
  const command = ["--data-dir", server.data, ...args, "--ops-address", server.operators];
  return execFileSync(server.binary, command, { encoding: "utf8" });
}

/** A browser of its own. */
export async function newBrowser(options) {
  const context = await browser.newContext(options);
  context.setDefaultTimeout(patience);
  return context;
}

/** A tab at the page; whatever breaks the policy or throws is a problem. */
export async function openTab(context, path = "/") {
  const tab = await context.newPage();
  tab.on("pageerror", (e) => problems.push(e.message));
  tab.on("console", (m) => {
    if (m.type() === "error" && !m.text().startsWith("Failed to load resource")) problems.push(m.text());
  });
  tab.on("request", (r) => r.url().startsWith(origin) || problems.push(`something from elsewhere: ${r.url()}`));
  await tab.goto(origin + path);
  return tab;
}

export const visit = async (options, path) => openTab(await newBrowser(options), path);

/** A tab of somebody who is signed in with a token, in a browser of its own. */
export async function signedIn(user, options = desktop, path = "/") {
  const context = await newBrowser(options);
  await remember(context, user);
  return openTab(context, path);
}

/** Has a browser know who is signed in, as after a visit. */
export async function remember(context, user, token = tokenOf(user)) {
  const session = JSON.stringify({ way: "token", userId: user, secret: token });
  await context.addInitScript((text) => localStorage.setItem("parley/session", text), session);
}

/** Looks at a tab dark and light, last as it was. */
async function inBothSchemes(tab, look) {
  const was = await tab.evaluate(() => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  for (const colorScheme of [was === "dark" ? "light" : "dark", was]) {
    await tab.emulateMedia({ colorScheme });
    await look(colorScheme);
  }
}

async function picture(tab, name) {
  if (shots) await tab.screenshot({ path: join(shots, `${name}.png`) });
}

/** Keeps pictures of a tab, if they are wanted. */
export const shot = (tab, name) => inBothSchemes(tab, (scheme) => picture(tab, `${name}-${scheme}`));

/** No violation of accessibility. The policy stops injected scripts, so the tool is evaluated. */
export async function accessible(tab, name) {
  await tab.evaluate(axe);
  await inBothSchemes(tab, async (scheme) => {
    const { violations } = await tab.evaluate(() => window.axe.run());
    for (const { id, nodes } of violations) {
      const where = nodes.map((n) => `${n.html} ${n.any[0]?.message ?? ""}`);
      problems.push(`${name}, ${scheme}: ${id}: ${where.join(" | ")}`);
    }
    await picture(tab, `${name}-${scheme}`);
  });
}

export const live = (tab) => tab.locator('[data-connection="live"]').waitFor({ state: "attached" });

export async function asDemo(tab, user) {
  await tab.getByRole("button", { name: user }).click();
  await live(tab);
}

export const texts = (tab) => tab.locator(".bubble .text").allTextContents();

/** The chat that is open comes to show these messages and no others. */
export async function shows(tab, expected) {
  const holds = (want) =>
    JSON.stringify([...document.querySelectorAll(".bubble .text")].map((e) => e.textContent)) === want;
  await tab.waitForFunction(holds, JSON.stringify(expected)).catch(async () => {
    await picture(tab, "failed");
    assert.deepEqual(await texts(tab), expected, await tab.locator("main").innerText());
  });
}

/** Writes a message, which is shown at once, sent or not. */
export async function say(tab, text) {
  const field = tab.getByLabel("Message", { exact: true });
  await field.fill(text);
  await field.press("Enter");
  const there = (text) => [...document.querySelectorAll(".bubble .text")].some((e) => e.textContent === text);
  await tab.waitForFunction(there, text);
}

/** No message of the chat that is open is on its way. */
export const allSent = (tab) =>
  tab.waitForFunction(() => !document.querySelector(".bubble.sending, .bubble.failed"));

const tokens = new Map();

export function tokenOf(user) {
  if (!tokens.has(user)) tokens.set(user, server.token(user));
  return tokens.get(user);
}

export async function rest(user, method, path, body) {
  const headers = { Authorization: `Bearer ${tokenOf(user)}`, "Content-Type": "application/json" };
  const answer = await fetch(`${origin}/api/v1${path}`, { method, headers, body: body && JSON.stringify(body) });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.status === 204 ? undefined : answer.json();
}

/** A group that `user` creates; returns its id. The members exist from their first call on. */
export async function newGroup(user, name, memberIds) {
  for (const id of memberIds) await rest(id, "GET", "/chats");
  const { overview } = await rest(user, "POST", "/chats", { type: "CHAT_TYPE_GROUP", name, memberIds });
  return overview.chat.chatId;
}

export const post = (user, chatId, content) => rest(user, "POST", `/chats/${chatId}/messages`, { content });

/** The messages of a chat as they are stored, the last page of them. */
export async function stored(user, chatId) {
  const { messages } = await rest(user, "GET", `/chats/${chatId}/messages`);
  return messages.map((m) => m.content);
}

/** Has the browser store nothing more of what the client keeps, until window.repair is called. */
export const breakStorage = (tab) =>
  tab.evaluate(() => {
    const { transaction } = IDBDatabase.prototype;
    const { error } = console;
    console.error = () => {};
    IDBDatabase.prototype.transaction = () => {
      throw new DOMException("full", "QuotaExceededError");
    };
    window.repair = () => {
      IDBDatabase.prototype.transaction = transaction;
      console.error = error;
    };
  });
