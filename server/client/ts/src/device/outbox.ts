// Messages on their way, and how far the user has read.
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import type { MemberState } from "#gen/parley/chat/v1/chat_pb.js";
import {
  AckRequestSchema,
  type AckResponse,
  type ReadMark,
  ReadMarkSchema,
} from "#gen/parley/delivery/v1/delivery_service_pb.js";
import { ContentType, MessageSchema } from "#gen/parley/message/v1/message_pb.js";
import {
  MarkReadRequestSchema,
  SendMessageRequestSchema,
  type SendMessageResponse,
} from "#gen/parley/message/v1/message_service_pb.js";
import { change } from "./change.js";
import { type Chat, member, notAMember } from "./chat.js";
import type { Machine, PendingCall } from "./machine.js";
import { hurryPoll } from "./poll.js";
import type { Failure, OutboxEntry } from "./types.js";

const hour = 3_600_000;
const sendMemory = 7 * 24 * hour; // how long the server remembers a message's id
const sendMargin = hour;
const ownGrace = 1000; // how long the stream may take to bring what this device sent
const ackEvery = 1000;
const markEvery = 100;
const maxMarks = 64; // in an Ack

/** The state of a chat's part of the outbox. */
export interface Sending {
  call: number; // under way, 0 for none
  tries: number;
  at: number;
}

/** How far the user has read a chat, on its way to the server. */
export interface Mark {
  chat: Chat;
  sequence: bigint;
  newest: bigint; // of the chat, when the call was made
}

/** Sends the oldest message of each chat. */
export function planSends(m: Machine, now: number) {
  m.outbox = m.outbox.filter((u) => {
    if (now - m.queuedAt.get(u)! < sendMemory - sendMargin || m.sending.get(u.chatId)?.call) return true;
    giveUp(m, u, { code: Code.DeadlineExceeded, reason: "TOO_OLD", retryAfter: 0 });
    return false;
  });
  const busy = new Set<string>();
  for (const u of m.outbox) {
    if (busy.has(u.chatId)) continue;
    busy.add(u.chatId);
    let f = m.sending.get(u.chatId);
    if (!f) m.sending.set(u.chatId, (f = { call: 0, tries: 0, at: 0 }));
    if (f.call !== 0 || now < f.at) continue;
    const { chatId, clientMessageId, content } = u;
    const request = create(SendMessageRequestSchema, {
      chatId,
      clientMessageId,
      content,
      contentType: ContentType.TEXT,
    });
    f.call = m.call("sendMessage", request, { entry: u });
  }
}

function giveUp(m: Machine, entry: OutboxEntry, why: Failure) {
  m.done.push(entry.clientMessageId);
  m.events.push({ sendFailed: { entry, why } });
}

/** Handles the answer to a send. */
export function sent(m: Machine, call: number, p: PendingCall, res?: SendMessageResponse, why?: Failure) {
  const u = p.entry!;
  const f = m.sending.get(u.chatId);
  if (!f || f.call !== call) return; // of another generation: it is sent again
  f.call = 0;
  if (why && !definite(why)) {
    m.failed(why);
    f.at = m.cfg.clock() + Math.max(why.retryAfter, m.backoff(f.tries));
    f.tries++;
    return;
  }
  m.sending.delete(u.chatId);
  m.outbox = m.outbox.filter((v) => v !== u);
  if (why || !res) {
    giveUp(m, u, why ?? { code: Code.Internal, reason: "", retryAfter: 0 });
    if (why?.reason === "NOT_A_MEMBER") m.chats.get(u.chatId)?.forgetState();
    return;
  }
  m.done.push(u.clientMessageId);
  m.events.push({ changed: u.chatId }); // the message may be there already
  hurryPoll(m);
  const old = m.chats.get(u.chatId);
  const behind = old !== undefined && old.record.newest < res.version - 1n;
  const c = member(m, u.chatId, res.version, false);
  if (!c) return;
  if (behind && m.stream.complete) c.askAt = m.cfg.clock() + ownGrace;
  const { messageId, sequence, clientMessageId, createdAt, version } = res;
  const message = create(MessageSchema, {
    messageId,
    chatId: u.chatId,
    sequence,
    senderId: m.cfg.userId,
    content: u.content,
    contentType: ContentType.TEXT,
    clientMessageId,
    createdAt,
    version,
  });
  change(c, version - 1n, version, { message });
}

/** Whether repeating a call cannot help. */
export function definite(why: Failure) {
  switch (why.code) {
    case Code.InvalidArgument:
    case Code.PermissionDenied:
    case Code.NotFound:
    case Code.AlreadyExists:
    case Code.FailedPrecondition:
    case Code.OutOfRange:
    case Code.Unimplemented:
      return true;
    default:
      return false;
  }
}

// Read marks go with the stream's Acks, so that a user who reads messages as they come costs one call for many of both.
// Without a stream, and to servers that take none with Acks, each goes with a call of its own.

/** Whether the server still has to learn how far the user has read. */
export const unmarked = (c: Chat) =>
  c.record.readTo > (c.record.state?.readSequence ?? 0n) && c.readCall === 0;

/** Whether marks go with the stream's Acks. */
export const takesMarks = (m: Machine) => m.stream.streamId !== "" && !m.stream.marksApart;

/** Acknowledges what has come, and with it the marks that wait. */
export function planAck(m: Machine, now: number) {
  const s = m.stream;
  if (s.ackCall !== 0) return;
  const marks: Mark[] = [];
  const readMarks: ReadMark[] = [];
  for (const c of m.pendingChats) {
    if (now < s.markAt || !takesMarks(m) || marks.length === maxMarks) break;
    if (m.chats.get(c.id) === c && unmarked(c) && now >= c.retryAt) {
      const sequence = c.record.readTo;
      marks.push({ chat: c, sequence, newest: c.record.newest });
      readMarks.push(create(ReadMarkSchema, { chatId: c.id, sequence }));
    }
  }
  if (marks.length === 0 && (s.acked === s.position || now < s.ackAt)) return;
  s.acked = s.position;
  s.ackAt = now + ackEvery;
  s.ackCall = m.call("ack", create(AckRequestSchema, { streamId: s.streamId, position: s.position, readMarks }), { marks });
  for (const k of marks) {
    k.chat.readCall = s.ackCall;
    s.markAt = now + markEvery;
  }
}

/** Tells the server how far the user has read. False if an Ack will. */
export function planMark(c: Chat): boolean {
  if (!unmarked(c)) return true;
  if (takesMarks(c.m)) return false;
  const sequence = c.record.readTo;
  c.readCall = c.m.call("markRead", create(MarkReadRequestSchema, { chatId: c.id, sequence }), {
    chat: c,
    marks: [{ chat: c, sequence, newest: c.record.newest }],
  });
  return true;
}

/** Handles the end of an Ack. */
export function acknowledged(m: Machine, call: number, p: PendingCall, res?: AckResponse, why?: Failure) {
  const outcomes = res?.readOutcomes ?? [];
  const told = !why && outcomes.length === p.marks.length;
  const apart = !told && p.marks.length > 0 && (!why || definite(why)); // no Ack will bring them
  const s = m.stream;
  if (call === s.ackCall) {
    // After a failure a later Ack covers what this one should have.
    s.ackCall = 0;
    s.marksApart ||= apart;
  }
  p.marks.forEach((k, i) => {
    const c = k.chat;
    if (m.chats.get(c.id) !== c || c.readCall !== call) return; // the chat was started over since
    c.readCall = 0;
    c.wake();
    if (apart) return;
    if (!told) c.pause(why);
    else if (outcomes[i]!.reason === "NOT_A_MEMBER") notAMember(m, c, k.newest);
    else decided(c, k, outcomes[i]!.state);
  });
}

/** Handles the server's word on a mark: a state without which it was refused. */
export function decided(c: Chat, k: Mark, state: MemberState | undefined) {
  if (c.record.readTo <= k.sequence) c.record.readTo = 0n; // else more was read meanwhile
  if (state) {
    c.tries = 0;
    c.seen = c.m.step;
    c.state(state);
  }
  c.changed();
}
