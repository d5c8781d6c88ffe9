// Stops of the client, its way on after each, and exceptions of the app, which stop nothing.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Code, ConnectError } from "@connectrpc/connect";
import { EndCode } from "../gen/parley/delivery/v1/frame_pb.js";
import { MemoryStorage } from "../dist/index.js";
import { TakenOverError } from "../dist/storage.js";
import { setUp } from "./server.mjs";

const timeout = 60_000;

/** Exceptions that are reported as uncaught. */
function reports(t) {
  const list = [];
  globalThis.reportError = (error) => list.push(error.message);
  t.after(() => delete globalThis.reportError);
  return list;
}

const live = (s) => s.until(() => s.client.status.connection === "live");
const stopped = (s) => s.until(() => s.client.status.connection === "stopped");

test("a listener that throws is reported, and nothing else changes", { timeout }, async (t) => {
  const list = reports(t);
  const s = setUp({
    onSendFailed: (entry) => {
      s.failed.push(entry.content);
      throw new TypeError("onSendFailed");
    },
  });
  const thrower = (name) => () => {
    throw new TypeError(name);
  };
  s.client.subscribe(thrower("subscribe"));
  s.client.profiles.subscribe(thrower("profiles"));
  s.client.start();
  await live(s);
  s.client.profiles.get("bob");
  for (const text of ["one", "bad", "two", "bad"]) s.client.send("c", text);
  const done = () => s.sent.length === 2 && s.failed.length === 2 && s.client.profiles.get("bob");
  while (!done()) await new Promise((look) => setTimeout(look, 5));
  assert.equal(s.client.status.connection, "live");
  assert.deepEqual([...new Set(list)].sort(), ["onSendFailed", "profiles", "subscribe"]);
  await s.client.close();
});

test("without reportError an exception is on the console, and the process lives", { timeout }, async (t) => {
  const { mock } = t.mock.method(console, "error", () => {});
  const s = setUp();
  s.client.subscribe(() => {
    throw new TypeError("mine");
  });
  s.client.start();
  await live(s);
  assert.equal(mock.calls[0].arguments[1].message, "mine");
  await s.client.close();
});

test("an exception of a token source is a refresh that failed, not the answer to a send", { timeout }, async () => {
  for (const error of [new TypeError("mine"), new ConnectError("no such session", Code.NotFound)]) {
    const s = setUp({
      token: (renew) => {
        s.tokens.push(renew);
        if (s.tokens.length <= 3) throw error;
        return "good";
      },
    });
    s.client.start();
    s.client.send("c", "one");
    await s.until(() => s.sent.length === 1 && s.client.unsent === 0);
    assert.deepEqual(s.failed, []);
    assert.equal(s.tokens.length, 4, "one at a time, after waits");
    await s.client.close();
  }
});

test("a token source may throw between two tokens, too", { timeout }, async () => {
  let thrown = 0;
  const s = setUp({
    token: (renew) => {
      if (!renew) return "stale";
      if (thrown++ < 2) throw new TypeError("mine");
      return "good";
    },
  });
  s.client.start();
  await live(s);
  assert.equal(thrown, 3);
  await s.client.close();
});

for (const why of ["SESSION_REVOKED", "REPLACED"]) {
  test(`${why} stops the client; a message that is written then is sent after resume`, { timeout }, async () => {
    const s = setUp();
    s.client.start();
    await live(s);
    s.endCode = EndCode[why];
    s.end();
    await stopped(s);
    assert.equal(s.client.status.why, why);
    s.client.send("c", "one");
    await s.until(() => s.client.unsent === 1);
    assert.deepEqual(s.sent, []);
    s.endCode = 0;
    s.client.resume();
    await s.until(() => s.sent.length === 1 && s.client.status.connection === "live");
    await s.client.close();
  });
}

test("a token source that refuses stops the client until it is resumed", { timeout }, async () => {
  let signedIn = false;
  const refuse = new ConnectError("signed out", Code.Unauthenticated);
  const s = setUp({ token: () => (signedIn ? "good" : Promise.reject(refuse)) });
  s.client.start();
  await stopped(s);
  assert.equal(s.client.status.why, "Unauthenticated");
  s.client.send("c", "one");
  await s.until(() => s.client.unsent === 1);
  signedIn = true;
  s.client.resume();
  await s.until(() => s.sent.length === 1 && s.client.status.connection === "live");
  await s.client.close();
});

for (const [why, error] of [
  ["STORAGE", new Error("full")],
  ["TAKEN_OVER", new TakenOverError()],
]) {
  test(`${why} stops the client; requests that were not stored are repeated after resume`, { timeout }, async (t) => {
    t.mock.method(console, "error", () => {});
    const storage = new MemoryStorage();
    const s = setUp({ storage });
    s.client.start();
    await live(s);
    let sound = false;
    storage.store = (batch) => (sound ? MemoryStorage.prototype.store.call(storage, batch) : Promise.reject(error));
    s.client.send("c", "one");
    await stopped(s);
    assert.equal(s.client.status.why, why);
    assert.throws(() => s.client.send("c", "two"), new RegExp(`stopped \\(${why}\\)`));
    s.client.open("c");
    s.client.resume(); // too early
    await s.until(() => s.client.status.connection === "connecting");
    await stopped(s);
    assert.deepEqual(s.sent, []);
    sound = true;
    s.client.resume();
    s.client.resume();
    s.client.send("c", "two");
    await s.until(() => s.sent.length === 2 && s.client.unsent === 0 && s.client.chat("c")?.loaded);
    assert.deepEqual(s.sent, ["one", "two"]);
    await s.client.close();
    assert.equal(s.client.status.connection, "live");
  });
}

test("a storage that cannot be read may be read later", { timeout }, async (t) => {
  t.mock.method(console, "error", () => {});
  const storage = new MemoryStorage();
  storage.load = () => {
    delete storage.load;
    throw new Error("locked");
  };
  const s = setUp({ storage });
  s.client.start();
  s.client.send("c", "one");
  await stopped(s);
  assert.equal(s.client.status.why, "STORAGE");
  s.client.resume();
  await s.until(() => s.sent.length === 1 && s.client.status.connection === "live");
  await s.client.close();
});

test("a mistake of the client is not called one of the storage", { timeout }, async (t) => {
  const list = reports(t);
  const s = setUp();
  s.client.start();
  await live(s);
  const { state } = s.client;
  state.apply = () => {
    delete state.apply;
    throw new TypeError("of the client");
  };
  s.client.open("c");
  await stopped(s);
  assert.equal(s.client.status.why, "INTERNAL");
  assert.deepEqual(list, ["of the client"]);
  s.client.resume();
  await s.until(() => s.client.chat("c")?.loaded && s.client.status.connection === "live");
  await s.client.close();
});

test("a closed client keeps no message, and says so", { timeout }, async () => {
  const s = setUp();
  s.client.start();
  await live(s);
  await s.client.close();
  assert.throws(() => s.client.send("c", "one"), /the client is closed/);
  const early = setUp();
  early.client.start();
  await early.client.close(); // before its storage was read
  await new Promise((done) => setTimeout(done, 50));
  assert.equal(early.streams, 0);
});

test("a chat that is created while the client closes is reported as created", { timeout }, async () => {
  const s = setUp({ storage: new MemoryStorage() });
  const created = s.client.create({ type: 2, name: "Tea" }); // not started: it is never among its chats
  await new Promise((done) => setTimeout(done, 100));
  await s.client.close();
  await assert.rejects(created, /closed: the chat was created/);
  await assert.rejects(s.client.create({ type: 2, name: "Tea" }), /closed/);
});
