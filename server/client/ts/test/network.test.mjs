// A browser reports another network, and a page that is visible again.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { MemoryStorage } from "../dist/index.js";
import { setUp } from "./server.mjs";

const timeout = 60_000;
const browser = {
  window: new EventTarget(),
  document: Object.assign(new EventTarget(), { visibilityState: "visible" }),
  navigator: { connection: Object.assign(new EventTarget(), { type: "wifi" }) },
};
for (const [name, value] of Object.entries(browser)) {
  const before = Object.getOwnPropertyDescriptor(globalThis, name);
  Object.defineProperty(globalThis, name, { value, configurable: true });
  after(() => (before ? Object.defineProperty(globalThis, name, before) : delete globalThis[name]));
}
const { connection } = browser.navigator;
const changed = new Event("change");
const looked = () => browser.document.dispatchEvent(new Event("visibilitychange"));
const soon = () => new Promise((done) => setTimeout(done, 100));

async function connected() {
  const s = setUp({ storage: new MemoryStorage() });
  s.client.start();
  await s.until(() => s.client.status.connection === "live");
  s.streams = 0;
  return s;
}

for (const [name, happens] of [
  ["online", () => browser.window.dispatchEvent(new Event("online"))],
  ["another kind of network", () => void ((connection.type = "cellular"), connection.dispatchEvent(changed))],
]) {
  test(`${name}: another stream at once, and calls are made again`, { timeout }, async () => {
    connection.type = "wifi";
    const s = await connected();
    s.sends.push(new Promise(() => {})); // on the old network
    s.client.send("c", "one");
    while (s.sends.length > 0) await soon();
    const began = performance.now();
    happens();
    await s.until(() => s.streams === 1 && s.client.status.connection === "live");
    assert.ok(performance.now() - began < 1000);
    await s.until(() => s.sent.length === 1 && s.client.unsent === 0);
    assert.ok(performance.now() - began < 5000);
    await s.client.close();
    happens();
    await soon();
    assert.equal(s.streams, 1, "a closed client does nothing");
  });
}

test("the first call on another network has a short limit, the next one the long limit", { timeout }, async () => {
  const s = await connected();
  s.sends.push(new Promise(() => {}));
  const began = performance.now();
  browser.window.dispatchEvent(new Event("online"));
  s.client.send("c", "one");
  await s.until(() => s.sent.length === 1);
  const took = performance.now() - began;
  assert.ok(took < 20_000, `${took} ms`);
  await s.client.close();
});

test("other estimates of the same network, and a page that is visible again, open no stream beside a live one", { timeout }, async (t) => {
  const s = await connected();
  connection.dispatchEvent(changed);
  connection.type = "none";
  connection.dispatchEvent(changed);
  looked();
  await soon();
  assert.equal(s.streams, 0);
  const { now } = Date;
  t.mock.method(Date, "now", () => now() + 20_000); // more than a heartbeat, less than the silence
  s.client.open("c");
  await soon();
  assert.equal(s.streams, 0, "its time is not over");
  browser.document.visibilityState = "hidden";
  looked();
  await soon();
  assert.equal(s.streams, 0, "the page is hidden");
  browser.document.visibilityState = "visible";
  looked();
  await s.until(() => s.streams === 1 && s.client.status.connection === "live");
  await s.client.close();
});
