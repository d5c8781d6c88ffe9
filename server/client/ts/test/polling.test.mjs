// A proxy holds streams back until they end.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MemoryStorage } from "../dist/index.js";
import { setUp } from "./server.mjs";

const timeout = 60_000;

test("behind a proxy that holds streams back, the client polls and says so, until a stream begins", { timeout }, async (t) => {
  const { now } = Date;
  let shift = 0;
  t.mock.method(Date, "now", () => now() + shift);
  const s = setUp({ storage: new MemoryStorage() });
  s.held = true;
  const passes = (ms) => {
    shift += ms;
    s.client.open("c"); // has it look at the clock
  };
  const seen = new Set();
  s.client.subscribe(() => seen.add(`${s.client.status.connection} ${s.client.status.polling ?? false}`));
  s.client.start();
  for (const n of [1, 2]) {
    while (s.streams < n) await new Promise((done) => setTimeout(done, 10));
    assert.equal(s.client.status.connection, "connecting");
    passes(15_000);
  }
  await s.until(() => s.client.status.polling);
  assert.equal(s.client.status.connection, "live");
  const shows = (n) => s.client.chat("c")?.messages?.length === n;
  await s.until(() => shows(0));
  s.says("bob", "one", "1");
  passes(2500);
  await s.until(() => shows(1));
  s.client.send("c", "mine");
  s.says("bob", "two", "2");
  await s.until(() => shows(3)); // at once
  const opens = async (n) => {
    while (s.streams < n) await new Promise((done) => setTimeout(done, 10));
  };
  await opens(3); // in case the network was away
  passes(15_000);
  passes(300_000);
  await opens(4);
  assert.equal(s.client.status.polling, true, "while another stream is tried");
  passes(15_000);
  s.held = false;
  passes(300_000);
  await s.until(() => s.client.status.connection === "live" && !s.client.status.polling);
  assert.deepEqual([...seen], ["connecting false", "live true", "live false"]);
  await s.client.close();
});
