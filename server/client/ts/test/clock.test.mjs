// The device's clock is wrong, is corrected, and the device sleeps.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Code, ConnectError } from "@connectrpc/connect";
import { Machine, emptySnapshot } from "../dist/device/index.js";
import { MemoryStorage } from "../dist/index.js";
import { setUp } from "./server.mjs";

const timeout = 60_000;
const hour = 3_600_000;
const day = 24 * hour;

/** The clock of the device, which is shift ahead. */
function deviceClock(t, shift = 0) {
  const { now } = Date;
  const c = { shift };
  t.mock.method(Date, "now", () => now() + c.shift);
  return c;
}

test("elapsed time does not go back, counts sleep, and no more than a day of a jump", async (t) => {
  let wall = Date.UTC(2030, 0, 1);
  let steady = 5000;
  t.mock.method(Date, "now", () => Math.floor(wall));
  t.mock.method(performance, "now", () => steady);
  const { elapsed } = await import("../dist/elapsed.js?own");
  const began = elapsed();
  const passes = (ms, ofWall = ms) => {
    steady += ms;
    wall += ofWall;
    return elapsed() - began;
  };
  assert.equal(passes(1000), 1000);
  assert.equal(passes(1000, -hour), 2000, "set back");
  assert.equal(passes(1000), 3000);
  assert.equal(passes(0, hour), 3000 + hour, "asleep");
  assert.equal(passes(500, 500 + hour), 3500 + 2 * hour, "set ahead");
  for (let i = 0; i < 1000; i++) passes(0.3);
  assert.equal(Math.round(passes(0)), 3800 + 2 * hour, "the clocks' precisions do not add up");
  assert.equal(Math.round(passes(0, 4000 * day)), 3800 + 2 * hour + day, "years behind, until it was set");
});

test("after a clock that was ahead is corrected, a message is sent at once", { timeout }, async (t) => {
  const clock = deviceClock(t, hour);
  const s = setUp();
  s.sends.push(new ConnectError("away", Code.Unavailable));
  s.client.start();
  await s.until(() => s.client.status.connection === "live");
  s.client.send("c", "one");
  while (s.sends.length > 0) await new Promise((done) => setTimeout(done, 1));
  clock.shift = 0;
  const began = performance.now();
  await s.until(() => s.sent.length === 1);
  s.end();
  await s.until(() => s.streams === 2 && s.client.status.connection === "live");
  assert.ok(performance.now() - began < 10_000);
  await s.client.close();
});

for (const [name, shifts] of [
  ["after an hour of sleep, in which the monotonic clock stood still", [hour]],
  ["after the clock was set back and the device slept", [-hour, 0]],
]) {
  test(`${name}, a stream that was silent is not waited for`, { timeout }, async (t) => {
    const clock = deviceClock(t);
    const s = setUp();
    s.client.start();
    await s.until(() => s.client.status.connection === "live");
    for (const shift of shifts) {
      clock.shift = shift;
      s.client.open("c"); // the client is asked, as by its timer
      await new Promise((done) => setTimeout(done, 50));
    }
    await s.until(() => s.streams === 2 && s.client.status.connection === "live");
    await s.client.close();
  });
}

test("a message is not given up because the clock was set ahead", { timeout }, async (t) => {
  const clock = deviceClock(t);
  const storage = new MemoryStorage();
  let token = () => Promise.reject(new Error("no network"));
  const s = setUp({ storage, token: () => token() });
  s.client.start();
  s.client.send("c", "one");
  await s.until(() => s.client.unsent === 1);
  const [entry] = (await storage.load()).outbox;
  assert.ok(Math.abs(entry.createdAt - Date.now()) < 5000, "what is stored is wall time");
  clock.shift = 8 * day;
  s.client.open("c");
  token = () => "good";
  await s.until(() => s.sent.length === 1);
  assert.deepEqual(s.failed, []);
  await s.client.close();
});

/** A machine with a stored message; its two clocks are apart. */
function machine(createdAt, wall) {
  const c = { now: 5000, wall };
  const outbox = [{ clientMessageId: "id", chatId: "c", content: "one", createdAt }];
  const snapshot = { ...emptySnapshot(), session: { token: "t", generation: "g" }, outbox };
  c.machine = new Machine({ userId: "ann", clock: () => c.now, wall: () => c.wall, random: () => 0.5 }, snapshot);
  c.take = () => c.machine.take();
  return c;
}

test("the age of a stored message counts by wall time, from now if it was written in the future", () => {
  const wall = Date.UTC(2030, 0, 1);
  const givenUp = ({ events }) => events.some((e) => e.sendFailed?.why.reason === "TOO_OLD");
  assert.ok(givenUp(machine(wall - 8 * day, wall).take()));
  const c = machine(wall + 8 * day, wall);
  const unavailable = () => {
    const send = c.take().calls.find((call) => call.kind === "sendMessage");
    c.machine.result(send.id, undefined, { code: Code.Unavailable, reason: "", retryAfter: 0 });
  };
  unavailable();
  c.wall += 30 * day; // changes nothing from now on
  c.now += 6 * day;
  unavailable();
  c.now += day;
  assert.ok(givenUp(c.take()), "the server has forgotten its id");
});

test("a stream is extended by the wall time, which is compared with that of the server", () => {
  const wall = Date.UTC(2030, 0, 1);
  const c = machine(wall, wall);
  const { calls } = c.take();
  const { id } = calls.find((call) => call.kind === "subscribe");
  const expiresAt = { seconds: BigInt((wall + hour) / 1000), nanos: 0 };
  const hello = { case: "hello", value: { streamId: "s", generation: "g", full: false, expiresAt } };
  c.machine.frames(id, { firstPosition: 1n, commit: 0n, frames: [{ chatId: "", version: 0n, body: hello }] });
  assert.equal(c.machine.stream.extendAt, c.now + hour - 60_000);
});
