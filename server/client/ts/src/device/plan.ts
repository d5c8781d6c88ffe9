// Which calls are needed, and when to look again.
import { create } from "@bufbuild/protobuf";
import { GetChatRequestSchema, ListMembersRequestSchema } from "#gen/parley/chat/v1/chat_service_pb.js";
import { SyncRequestSchema } from "#gen/parley/delivery/v1/delivery_service_pb.js";
import { ListChangesRequestSchema, ListMessagesRequestSchema } from "#gen/parley/message/v1/message_service_pb.js";
import type { Chat } from "./chat.js";
import type { Machine, PendingCall } from "./machine.js";
import { planMark, planSends, takesMarks, unmarked } from "./outbox.js";
import { silence } from "./poll.js";
import { planStream } from "./stream.js";
import type { Requests } from "./types.js";

const maxReads = 8; // chats' reads under way

/** When `take` may have something new without any other input, by its clock; undefined if never. */
export function deadline(m: Machine): number | undefined {
  let first: number | undefined;
  const add = (t: number) => {
    if (t !== 0 && (first === undefined || t < first)) first = t;
  };
  if (m.stopped) return undefined;
  if (m.needRefresh && m.refreshing === 0) {
    add(m.refreshAt);
    return first;
  }
  const s = m.stream;
  for (const c of m.pendingChats) {
    add(c.retryAt);
    if (c.record.loaded && c.record.version < c.record.newest) add(c.askAt);
    if (unmarked(c) && takesMarks(m) && s.ackCall === 0 && c.retryAt <= s.markAt) add(s.markAt);
  }
  for (const u of m.outbox) {
    const f = m.sending.get(u.chatId);
    if (f && f.call === 0) add(f.at);
  }
  const at = syncAt(m);
  if (at !== undefined) add(at);
  if (s.id !== 0) {
    add(s.heard + silence(m));
    if (s.acked < s.position && s.ackCall === 0) add(s.ackAt);
    if (s.extendAt !== 0 && s.extendCall === 0) add(s.extendAt);
  } else if (!m.sync.need) {
    add(s.connectAt);
  }
  return first;
}

/** Makes the calls that are needed now. */
export function plan(m: Machine) {
  if (m.stopped) return;
  const now = m.cfg.clock();
  if (m.needRefresh) {
    if (m.refreshing === 0 && now >= m.refreshAt) m.refreshing = m.call("refresh");
    return;
  }
  planStream(m, now);
  planSync(m, now);
  planSends(m, now);
  m.pendingChats = m.pendingChats.filter((c) => {
    const waits = m.chats.get(c.id) === c && !planChat(c, now);
    c.queued = waits;
    return waits;
  });
}

/** When the next page of chats is due; undefined if none is. */
function syncAt(m: Machine): number | undefined {
  const { need, call, page, at } = m.sync;
  if (call !== 0) return undefined;
  if (need || page !== "") return at;
  return m.poll.on ? Math.max(m.poll.at, at) : undefined;
}

/** Requests a page: of all chats, or in a poll of those that changed. */
function planSync(m: Machine, now: number) {
  const at = syncAt(m);
  if (at === undefined || now < at) return;
  const s = m.sync;
  if (s.page === "") {
    s.began = m.step;
    s.news = false;
    s.token = m.session.token;
  }
  const { token, page: pageToken } = s;
  s.call = m.call("sync", create(SyncRequestSchema, { token, pageToken, pageSize: m.cfg.pageSize }));
}

/** Makes the calls that the chat needs. False if it must be planned again although nothing new comes. */
function planChat(c: Chat, now: number): boolean {
  const { m, record: r } = c;
  if (now < c.retryAt) return false;
  c.retryAt = 0;
  let done = true;
  const chatId = c.id;
  const pageSize = Math.min(m.cfg.pageSize, 100);
  type Slot = "chatCall" | "contentCall" | "membersCall";
  const read = <K extends keyof Requests>(
    slot: Slot,
    wanted: boolean,
    kind: K,
    request: () => Requests[K],
    more: Partial<PendingCall> = {},
  ) => {
    if (!wanted || c[slot] !== 0) return;
    if (m.reads >= maxReads) {
      done = false;
      return;
    }
    m.reads++;
    c[slot] = m.call(kind, request(), { ...more, chat: c });
  };
  const needed = r.loaded ? r.base : r.newest; // if it is loaded, changes are read with the messages
  read("chatCall", !r.chat || r.knownAt < needed, "getChat", () => create(GetChatRequestSchema, { chatId }));
  if (r.open && !r.loaded) {
    read("contentCall", true, "listMessages", () => create(ListMessagesRequestSchema, { chatId, pageSize }));
  } else if (r.open) {
    let behind = r.version < r.newest;
    if (behind && now < c.askAt) behind = done = false;
    const afterVersion = r.version;
    read(
      "contentCall",
      behind,
      "listChanges",
      () => create(ListChangesRequestSchema, { chatId, afterVersion, pageSize }),
      { after: afterVersion },
    );
    read(
      "contentCall",
      c.wantOlder && r.hasOlder,
      "listMessages",
      () => {
        c.wantOlder = false;
        return create(ListMessagesRequestSchema, { chatId, pageSize, beforeSequence: r.first });
      },
      { older: true },
    );
    read("membersCall", !r.membersLoaded, "listMembers", () =>
      create(ListMembersRequestSchema, { chatId, pageSize, pageToken: c.pageToken }),
    );
  }
  return planMark(c) && done;
}
