// Plays a scenario of server/client/conformance: gives a machine its inputs, step by step, and demands its calls, its
// events and what it shows.
import assert from "node:assert/strict";
import { fromJson, toJson } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import * as chat from "../gen/parley/chat/v1/chat_pb.js";
import * as chats from "../gen/parley/chat/v1/chat_service_pb.js";
import * as delivery from "../gen/parley/delivery/v1/delivery_service_pb.js";
import * as message from "../gen/parley/message/v1/message_pb.js";
import * as messages from "../gen/parley/message/v1/message_service_pb.js";

const epoch = Date.UTC(2030, 0, 1);

// Requests and answers by kind of call.
const kinds = {
  subscribe: [delivery.SubscribeRequestSchema, delivery.SubscribeResponseSchema],
  sync: [delivery.SyncRequestSchema, delivery.SyncResponseSchema],
  ack: [delivery.AckRequestSchema, delivery.AckResponseSchema],
  extend: [delivery.ExtendRequestSchema, delivery.ExtendResponseSchema],
  getChat: [chats.GetChatRequestSchema, chats.GetChatResponseSchema],
  listMembers: [chats.ListMembersRequestSchema, chats.ListMembersResponseSchema],
  listMessages: [messages.ListMessagesRequestSchema, messages.ListMessagesResponseSchema],
  listChanges: [messages.ListChangesRequestSchema, messages.ListChangesResponseSchema],
  sendMessage: [messages.SendMessageRequestSchema, messages.SendMessageResponseSchema],
  markRead: [messages.MarkReadRequestSchema, messages.MarkReadResponseSchema],
};

const codeOf = (name) => Code[name.replace(/(^|_)(\w)/g, (_, __, c) => c.toUpperCase())];
const nameOf = (code) => Code[code].replace(/(?<!^)[A-Z]/g, "_$&").toLowerCase();
const failure = (f) => f && { code: codeOf(f.code), reason: f.reason ?? "", retryAfter: f.retryAfter ?? 0 };
const reason = (why) => why.reason || nameOf(why.code);

export function play({ Machine, emptySnapshot, storeInto, viewIn }, scenario) {
  let now = epoch;
  const stored = emptySnapshot();
  const calls = new Map(); // by the scenario's number
  const shown = {}; // chats that are expected
  let outbox = [];
  const start = () =>
    new Machine(
      {
        userId: scenario.user,
        clock: () => now,
        random: () => 0.5,
        pageSize: scenario.pageSize ?? 0,
        subscribeFirst: scenario.subscribeFirst ?? false,
        silence: scenario.silence || 50_000,
      },
      { ...stored, chats: new Map(stored.chats), messages: new Map(stored.messages), outbox: [...stored.outbox] },
    );
  let m = start();

  function input(it) {
    const call = calls.get(it.call);
    if (it.call) assert.ok(call, `no call ${it.call} was made`);
    const answer = it.message && call && fromJson(kinds[call.kind][1], it.message);
    const does = {
      restart: () => (m = start()),
      resume: () => m.resume(),
      open: () => m.open(it.chat),
      evict: () => m.evict(it.chat),
      loadOlder: () => m.loadOlder(it.chat),
      markRead: () => m.markRead(it.chat, BigInt(it.sequence)),
      send: () => m.send(it.chat, it.content, it.id),
      learn: () => m.learn(fromJson(chat.ChatOverviewSchema, it.message), it.history),
      frames: () => m.frames(call.id, answer),
      ended: () => m.streamEnded(call.id, failure(it.failure)),
      result: () => m.result(call.id, answer, failure(it.failure), it.history),
    };
    does[it.do]();
  }

  function step(s) {
    now = epoch + s.at;
    s.do?.forEach(input);
    const { batch, calls: wanted, events } = m.take();
    storeInto(stored, batch);

    const open = [...(s.calls ?? [])];
    for (const c of wanted) {
      const request = c.request && toJson(kinds[c.kind][0], c.request);
      const at = open.findIndex(
        (w) =>
          w.kind === c.kind &&
          same(w.request, request) &&
          (w.history ?? "") === (c.history ?? "") &&
          (!w.stream || calls.get(w.stream)?.id === c.stream),
      );
      assert.ok(at >= 0, `call ${c.kind} ${JSON.stringify(request)} is not one of ${JSON.stringify(open)}`);
      if (open[at].call) calls.set(open[at].call, c);
      open.splice(at, 1);
    }
    assert.equal(open.length, 0, `calls are missing: ${JSON.stringify(open)}`);

    const changed = new Set();
    const seen = [];
    for (const e of events) {
      if (e.connected) seen.push({ connected: true, ...(e.polling && { polling: true }) });
      else if (e.stopped) seen.push({ stopped: reason(e.stopped) });
      else if (e.sendFailed) seen.push({ sendFailed: e.sendFailed.entry.clientMessageId, why: reason(e.sendFailed.why) });
      else changed.add(e.changed ?? e.removed);
    }
    assert.deepEqual(seen, s.events ?? []);

    const restarted = s.do?.some((it) => it.do === "restart");
    for (const [id, patch] of Object.entries(s.chats ?? {})) {
      expect(id, patch);
      assert.ok(changed.has(id) || restarted, `the app is not notified that ${id} changed`);
    }
    // What is stored is what is shown.
    const now_ = {};
    for (const id of stored.chats.keys()) {
      const v = viewIn(stored, id);
      if (v.chat) now_[id] = show(v);
    }
    if (!same(now_, shown)) assert.deepEqual(now_, shown);
    if (s.outbox) outbox = s.outbox;
    assert.deepEqual(
      stored.outbox.map((u) => u.clientMessageId),
      outbox,
    );
    const next = m.deadline();
    assert.equal(next === undefined ? undefined : Math.floor(next) - epoch, s.next, "when to be asked again");
  }

  function expect(id, patch) {
    if (patch === null) {
      delete shown[id];
      return;
    }
    const c = (shown[id] ??= { messages: [] });
    for (const [name, value] of Object.entries(patch)) {
      if (name === "cleared") c.messages = [];
      else if (name !== "messages" && value === null) delete c[name];
      else if (name !== "messages") c[name] = value;
    }
    for (const msg of patch.messages ?? []) {
      c.messages = [...c.messages.filter((o) => o.sequence !== msg.sequence), msg];
    }
    c.messages.sort((a, b) => Number(a.sequence) - Number(b.sequence));
  }

  scenario.steps.forEach((s, i) => {
    try {
      step(s);
    } catch (e) {
      e.message = `${scenario.name}, step ${i + 1}: ${e.message}`;
      throw e;
    }
  });
}

/** What is shown of a chat, in protobuf's JSON mapping and without defaults. */
function show(v) {
  const all = {
    chat: v.chat && toJson(chat.ChatSchema, v.chat),
    head: v.head && toJson(chat.ChatHeadSchema, v.head),
    state: v.state && toJson(chat.MemberStateSchema, v.state),
    unread: v.unread && String(v.unread),
    peerRead: v.peerRead && String(v.peerRead),
    open: v.open,
    loaded: v.loaded,
    version: v.version && String(v.version),
    first: v.first && String(v.first),
    hasOlder: v.hasOlder,
    members: v.members?.map(({ userId, role, joinedAt, version }) =>
      toJson(chat.MemberSchema, { $typeName: "parley.chat.v1.Member", userId, role, joinedAt, version }),
    ),
  };
  const out = { messages: v.messages.map((msg) => toJson(message.MessageSchema, msg)) };
  for (const [name, value] of Object.entries(all)) if (value) out[name] = value;
  return out;
}

function same(a, b) {
  if (a === b) return true;
  if (typeof a !== "object" || typeof b !== "object" || !a || !b || Array.isArray(a) !== Array.isArray(b)) return false;
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((n) => same(a[n], b[n]));
}
