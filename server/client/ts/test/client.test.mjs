// The client around the machine.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Code } from "@connectrpc/connect";
import { MemoryStorage } from "../dist/index.js";
import { setUp } from "./server.mjs";

const timeout = 60_000;

test("a stale token is renewed, messages go out in order, a refused one is told", { timeout }, async () => {
  const s = setUp();
  s.client.start();
  s.client.send("c", "one"); // before anything is there
  s.client.send("c", "bad");
  const id = await s.client.createGroup("Tea", []);
  await s.until(() => s.client.status.connection === "live" && s.client.chat(id)?.loaded);
  s.client.send(id, "two");
  await s.until(() => s.client.chat(id).messages.length === 2 && s.client.chat(id).outbox.length === 0);
  assert.deepEqual(s.sent, ["one", "two"], "under the same id a message is stored once");
  assert.deepEqual(s.failed, [["bad", "TOO_BAD"]]);
  assert.deepEqual(s.tokens.slice(0, 2), [false, true]);
  assert.ok(s.refused > 0);
  const [view] = s.client.chats();
  assert.equal(view, s.client.chat(id), "the same object until it changes");
  assert.equal(s.client.chats(), s.client.chats());
  await s.client.close();
});

test("a call with a token that ended is made once more with another one", { timeout }, async () => {
  const s = setUp({ token: (renew) => (s.tokens.push(renew), renew ? "good" : "stale") });
  assert.equal((await s.client.api.chats.getChat({ chatId: "c" })).overview.chat.name, "Tea");
  assert.deepEqual(s.tokens, [false, true]);
  const refused = setUp({ token: (renew) => (refused.tokens.push(renew), "stale") });
  await assert.rejects(refused.client.api.chats.getChat({ chatId: "c" }), { code: Code.Unauthenticated });
  assert.deepEqual(refused.tokens, [false, true]);
  assert.equal(refused.refused, 1, "not again with the same one");
});

test("profiles of a stream's frames are fetched, and what was not sent outlasts a session", { timeout }, async () => {
  const storage = new MemoryStorage();
  const s = setUp({ storage });
  s.client.start();
  await s.until(() => s.client.status.connection === "live");
  await new Promise((done) => {
    const look = () => s.client.profiles.get("bob")?.displayName === "Bob 1" && (stop(), done());
    const stop = s.client.profiles.subscribe(look);
    look();
  });
  s.profile(2n);
  await new Promise((done) => {
    const stop = s.client.profiles.subscribe(() => s.client.profiles.get("bob").displayName === "Bob 2" && (stop(), done()));
  });
  s.reason = "SESSION_REVOKED";
  s.end();
  await s.until(() => s.client.status.connection === "stopped");
  assert.ok(s.client.leads);
  s.client.send("c", "kept");
  await s.until(() => s.client.unsent === 1);
  await s.client.forget({ keepUnsent: true });
  const { chats, outbox, session } = await storage.load();
  assert.deepEqual([chats.size, session.token, outbox.map((u) => u.content)], [0, "", ["kept"]]);
  await s.client.forget();
  assert.equal((await storage.load()).outbox.length, 0);
});

test("of a long chat the last messages are kept, and older ones come again", { timeout }, async () => {
  const storage = new MemoryStorage();
  const s = setUp({ storage });
  s.client.start();
  s.client.open("c");
  await s.until(() => s.client.chat("c")?.loaded);
  for (const text of ["1", "2", "3", "4", "5"]) s.client.send("c", text);
  const shown = () => s.client.chat("c").messages.map((m) => m.content).join("");
  await s.until(() => shown() === "12345" && s.client.unsent === 0);
  s.client.trim("c", 9);
  s.client.trim("c", 2);
  await s.until(() => shown() === "45");
  const kept = async () => (await storage.load()).messages.get("c").map((m) => m.content).join("");
  assert.equal(await kept(), "45");
  assert.deepEqual([s.client.chat("c").first, s.client.chat("c").hasOlder], [4n, true]);
  s.client.loadOlder("c");
  await s.until(() => shown() === "2345");
  s.client.loadOlder("c");
  s.client.trim("c", 2); // while messages are being loaded
  await s.until(() => shown() === "12345");
  assert.equal(s.client.chat("c").hasOlder, false);
  assert.equal(await kept(), "12345");
  await s.client.close();
});

test("a revoked session stops the client until it is resumed", { timeout }, async () => {
  const s = setUp();
  s.client.start();
  await s.until(() => s.client.status.connection === "live");
  s.reason = "SESSION_REVOKED";
  s.end();
  await s.until(() => s.client.status.connection === "stopped");
  assert.equal(s.client.status.why, "SESSION_REVOKED");
  s.reason = "";
  s.client.resume();
  await s.until(() => s.client.status.connection === "live");
  await s.client.close();
});

test("what was not sent goes out with the next client of the storage", { timeout }, async () => {
  const storage = new MemoryStorage();
  const first = setUp({ storage, token: () => Promise.reject(new Error("no network")) });
  first.client.start();
  first.client.send("c", "one");
  await first.until(() => first.client.chat("c") === undefined && first.client.status.connection === "connecting");
  await new Promise((done) => setImmediate(done));
  await first.client.close();
  const second = setUp({ storage });
  second.client.start();
  await second.until(() => second.sent.length === 1);
  assert.deepEqual(second.sent, ["one"]);
  await second.client.close();
});

test("a storage that fails stops the client", { timeout }, async () => {
  const storage = new MemoryStorage();
  storage.store = () => Promise.reject(new Error("full"));
  const s = setUp({ storage });
  const { error } = console;
  console.error = () => {};
  s.client.start();
  await s.until(() => s.client.status.connection === "stopped");
  console.error = error;
  assert.equal(s.client.status.why, "STORAGE");
  assert.deepEqual(s.sent, []);
  await s.client.close();
});
