// What stays of messages that were refused and of chats that were left.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MembershipChange_Kind as Kind } from "../gen/parley/message/v1/message_pb.js";
import { MemoryStorage } from "../dist/index.js";
import { setUp } from "./server.mjs";

const timeout = 60_000;
const texts = (client) => client.refused().map((r) => r.entry.content);

/** A client whose server has refused messages with this text, and those of this storage. */
async function withRefused(count, storage = new MemoryStorage()) {
  const s = setUp({ storage });
  s.client.start();
  for (let n = 0; n < count; n++) s.client.send("c", "bad");
  await s.until(() => s.failed.length === count && s.client.unsent === 0);
  return { s, storage };
}

test("a refused message stays over a restart until it is dismissed", { timeout }, async () => {
  const { s, storage } = await withRefused(2);
  assert.equal(s.client.refused(), s.client.refused(), "the same list until it changes");
  await s.client.close();
  const next = setUp({ storage });
  next.client.start();
  await next.until(() => next.client.refused().length === 2);
  const [{ entry, reason }] = next.client.refused();
  assert.deepEqual([entry.chatId, entry.content, reason], ["c", "bad", "TOO_BAD"]);
  next.client.dismiss(entry.clientMessageId);
  await next.until(() => next.client.refused().length === 1);
  await next.client.close();
  assert.equal((await storage.load()).remnants.refused.length, 1);
  assert.deepEqual(next.failed, [], "it was reported before");
});

test("a refusal is stored with the change that takes the message out of the outbox", { timeout }, async () => {
  const storage = new MemoryStorage();
  const batches = [];
  storage.store = (batch) => (batches.push(batch), MemoryStorage.prototype.store.call(storage, batch));
  const { s } = await withRefused(1, storage);
  const [id] = s.client.refused().map((r) => r.entry.clientMessageId);
  const done = batches.find((b) => b.done.includes(id));
  assert.deepEqual(done.remnants.refused, s.client.refused());
  const again = s.client.send("c", "good now", { instead: id });
  assert.notEqual(again, id);
  await s.until(() => s.client.unsent === 0 && s.sent.length === 1);
  assert.deepEqual(texts(s.client), []);
  const step = batches.find((b) => b.outbox.some((u) => u.clientMessageId === again));
  assert.deepEqual(step.remnants.dropped, [id], "in the same step");
  await s.client.close();
});

test("a refused message is sent again once", { timeout }, async () => {
  const { s } = await withRefused(1);
  const [id] = s.client.refused().map((r) => r.entry.clientMessageId);
  for (let n = 0; n < 2; n++) s.client.send("c", "good now", { instead: id }); // two tabs, or a page that was slow
  await s.until(() => s.client.unsent === 0 && s.sent.length > 0 && s.client.refused().length === 0);
  s.client.send("c", "good now", { instead: id });
  s.client.send("c", "the last");
  await s.until(() => s.sent.includes("the last"));
  assert.deepEqual(s.sent, ["good now", "the last"]);
  await s.client.close();
});

test("the last 200 refused messages stay", { timeout }, async (t) => {
  const { mock } = t.mock.method(console, "warn", () => {});
  const { s, storage } = await withRefused(200);
  const [first, second] = s.client.refused().map((r) => r.entry.clientMessageId);
  assert.equal(mock.calls.length, 0);
  s.client.send("c", "bad");
  await s.until(() => s.failed.length === 201);
  assert.match(mock.calls[0].arguments[0], /more than 200 refused messages/);
  const ids = (await storage.load()).remnants.refused.map((r) => r.entry.clientMessageId);
  assert.deepEqual([ids.length, ids[0], ids.includes(first)], [200, second, false]);
  await s.client.close();
});

test("what was refused outlasts a session, but not a sign-out", { timeout }, async () => {
  const { s, storage } = await withRefused(1);
  await s.client.forget({ keepUnsent: true });
  assert.equal((await storage.load()).remnants.refused.length, 1);
  await setUp({ storage }).client.forget();
  assert.equal((await storage.load()).remnants, undefined);
});

test("of a chat the name and the remover stay until the user is a member again", { timeout }, async () => {
  const storage = new MemoryStorage();
  const s = setUp({ storage });
  s.client.start();
  await s.until(() => s.client.status.connection === "live" && s.client.chat("c")?.chat);
  const value = { userId: "ann", kind: Kind.REMOVED, changedBy: "bob", version: 2n };
  s.frame({ chatId: "c", afterVersion: 1n, version: 2n, body: { case: "membershipChange", value } });
  await s.until(() => s.client.leftChats().length === 1);
  assert.deepEqual(s.client.leftChats(), [{ chatId: "c", name: "Tea", changedBy: "bob" }]);
  assert.equal(s.client.chat("c"), undefined);
  await s.client.close();
  const next = setUp({ storage });
  next.client.start();
  next.client.open("c"); // the server still has the user as a member
  await next.until(() => next.client.chat("c")?.chat);
  assert.deepEqual(next.client.leftChats(), []);
  await next.client.close();
});
