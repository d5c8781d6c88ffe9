// The one stream of a device: its frames, its end, and the next one.
import { create } from "@bufbuild/protobuf";
import { type Duration, timestampMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import {
  ExtendRequestSchema,
  SubscribeRequestSchema,
  type SubscribeResponse,
} from "#gen/parley/delivery/v1/delivery_service_pb.js";
import { type End, EndCode, type Frame, type Hello } from "#gen/parley/delivery/v1/frame_pb.js";
import { MembershipChange_Kind } from "#gen/parley/message/v1/message_pb.js";
import { type Body, change } from "./change.js";
import { type Chat, leave, member, notAMember, overview, removed } from "./chat.js";
import { follows, historyOf, refused } from "./history.js";
import { lastBackoff, type Machine, maxKnown } from "./machine.js";
import { planAck } from "./outbox.js";
import { connectAfter, noPolling, retry, silence } from "./poll.js";
import type { Failure } from "./types.js";

export interface Stream {
  id: number; // of the subscribe call; 0 without a stream
  asked: string; // the history that it said
  generation: string; // from hello, if the server compares histories
  streamId: string; // from hello; empty before it
  known: Map<string, bigint>; // newest version of the chats that were named, then
  listing: boolean; // the head frames until the first token list all chats
  listFrom: number; // step of the call
  complete: boolean; // a token came: everything missed was sent
  end?: End;
  position: bigint;
  acked: bigint;
  ackCall: number;
  ackAt: number; // of the next Ack for frames, and for read marks
  markAt: number;
  marksApart: boolean; // this server takes no marks with Acks
  extendCall: number;
  extendAt: number; // 0: never
  heard: number;
  heartbeat: number; // a frame comes at least so often
  connectAt: number; // of the next stream
  tries: number; // streams since the last one that was complete
}

export const noStream = (tries: number): Stream => ({
  id: 0,
  asked: "",
  generation: "",
  streamId: "",
  known: new Map(),
  listing: false,
  listFrom: 0,
  complete: false,
  position: 0n,
  acked: 0n,
  ackCall: 0,
  ackAt: 0,
  markAt: 0,
  marksApart: false,
  extendCall: 0,
  extendAt: 0,
  heard: 0,
  heartbeat: 15_000, // until hello says it
  connectAt: 0,
  tries,
});

/** Opens the stream, and keeps it. */
export function planStream(m: Machine, now: number) {
  if (m.stream.id !== 0 && now - m.stream.heard >= silence(m)) closeStream(m, now);
  const s = m.stream;
  if (s.id === 0) {
    if (!m.sync.need && now >= s.connectAt) subscribe(m, now);
    return;
  }
  if (s.streamId === "") return;
  planAck(m, now);
  if (s.extendAt !== 0 && s.extendCall === 0 && now >= s.extendAt) {
    s.extendCall = m.call("extend", create(ExtendRequestSchema, { streamId: s.streamId }));
  }
}

export function closeStream(m: Machine, now: number) {
  m.out.push({ id: ++m.lastCall, kind: "closeStream", stream: m.stream.id });
  retry(m, now, m.backoff(m.stream.tries));
}

function subscribe(m: Machine, now: number) {
  const s = m.stream;
  const token = m.session.token;
  // Without a token the stream lists all chats by their heads.
  const recent = token === "" ? [] : mostRecent(m, maxKnown);
  s.known = new Map(recent.map((c) => [c.id, c.record.newest]));
  const knownChats = recent.map((c) => ({ chatId: c.id, version: c.record.version }));
  s.asked = historyOf(m.session);
  s.id = m.call("subscribe", create(SubscribeRequestSchema, { token, knownChats }));
  s.heard = now;
  s.listFrom = m.step;
}

/** The loaded chats that changed last, at most n. */
function mostRecent(m: Machine, n: number): Chat[] {
  const list = m.sorted().filter((c) => c.record.loaded);
  if (list.length <= n) return list;
  const at = (c: Chat) => {
    const t = c.record.head?.changedAt;
    return t ? t.seconds * 1_000_000_000n + BigInt(t.nanos) : 0n;
  };
  list.sort((a, b) => (at(b) > at(a) ? 1 : at(b) < at(a) ? -1 : 0));
  const newest = new Set(list.slice(0, n));
  return m.sorted().filter((c) => newest.has(c));
}

/** Applies what came on the stream that a subscribe call opened. */
export function frames(m: Machine, call: number, res: SubscribeResponse) {
  const s = m.stream;
  if (call !== s.id || m.stopped) return;
  s.heard = m.cfg.clock();
  if (res.frames.length > 0) {
    if (res.firstPosition !== s.position + 1n) {
      closeStream(m, s.heard);
      return;
    }
    s.position += BigInt(res.frames.length);
  }
  if (!follows(m, res)) {
    closeStream(m, s.heard);
    return;
  }
  for (const f of res.frames) frame(m, f);
}

function frame(m: Machine, f: Frame) {
  const id = f.chatId;
  const { body } = f;
  switch (body.case) {
    case "hello":
      return hello(m, body.value);
    case "heartbeat":
      return heartbeat(m, body.value.token);
    case "end":
      m.stream.end = body.value;
      if (body.value.token !== "" && !m.sync.need) m.setToken(body.value.token);
      return;
    case "reset":
      return reset(m, id, body.value.version);
    case "head":
      if (body.value.overview) overview(m, body.value.overview, true);
      else member(m, id, body.value.version, true);
      return;
    case "memberState": {
      // It may come before the chat, which may have been read before it.
      const c = member(m, id, 0n, false);
      if (c) c.state(body.value);
      // Perhaps of the membership that is about to be shown.
      else if (body.value.revision > (m.early.get(id)?.revision ?? 0n)) m.early.set(id, body.value);
      return;
    }
    case "message":
      return versioned(m, f, { message: body.value });
    case "chat":
      return versioned(m, f, { chat: body.value });
    case "membershipChange": {
      const own = body.value.userId === m.cfg.userId;
      if (!own || body.value.kind !== MembershipChange_Kind.REMOVED) {
        return versioned(m, f, { membershipChange: body.value });
      }
      if (f.version > 0n) return removed(m, id, f.version);
      // Named in the subscription, but not a chat of the user then.
      const c = m.chats.get(id);
      if (c) notAMember(m, c, m.stream.known.get(id) ?? 0n);
      return;
    }
    default: // of a newer release
      return versioned(m, f, {});
  }
}

function versioned(m: Machine, f: Frame, b: Body) {
  if (f.version === 0n || f.chatId === "") return;
  const c = member(m, f.chatId, f.version, true);
  if (c) change(c, f.afterVersion, f.version, b);
}

function hello(m: Machine, h: Hello) {
  m.stream.streamId = h.streamId;
  m.poll.mute = 0;
  m.stream.listing = h.full;
  m.stream.heartbeat = milliseconds(h.heartbeatInterval) || m.stream.heartbeat;
  expires(m, h);
}

/**
 * Has the stream extended before its time is over, but not all the time: an earlier release says only when that is, by a
 * clock that may differ.
 */
export function expires(m: Machine, { expiresAt, expiresIn }: Pick<Hello, "expiresAt" | "expiresIn">) {
  m.stream.extendAt = 0;
  if (!expiresAt) return;
  const left = expiresIn ? milliseconds(expiresIn) : timestampMs(expiresAt) - m.cfg.wall();
  m.stream.extendAt = m.cfg.clock() + Math.max(left - m.cfg.extendBefore, lastBackoff);
}

function heartbeat(m: Machine, token: string) {
  if (token === "") return; // the stream has not yet sent all that was missed
  const s = m.stream;
  if (s.listing) {
    s.listing = false;
    dropUnlisted(m, s.listFrom);
  }
  if (!s.complete) {
    s.complete = true;
    s.tries = 0;
    m.poll = noPolling();
    m.events.push({ connected: true });
  }
  if (!m.sync.need) m.setToken(token);
}

/**
 * Drops the chats that a full list, requested at a step, did not name. An answer that came since may be newer than the
 * list or older: those chats are read again, which decides.
 */
export function dropUnlisted(m: Machine, from: number) {
  for (const c of m.sorted()) {
    if (c.listed >= from) continue;
    if (c.seen < from) leave(m, c.id, c.record.newest + 1n);
    else c.forgetState();
  }
}

function reset(m: Machine, chatId: string, version: bigint) {
  if (chatId === "") {
    m.dropVersions();
    m.resync();
    return;
  }
  member(m, chatId, version, true)?.restart();
}

const milliseconds = (d: Duration | undefined) => (d ? Number(d.seconds) * 1000 + d.nanos / 1e6 : 0);

/** Handles the end of a stream, after its last frames; without a failure it ended without an error. */
export function streamEnded(m: Machine, call: number, failure?: Failure) {
  m.calls.delete(call);
  if (call !== m.stream.id || m.stopped) return;
  const why = failure ?? { code: Code.Unavailable, reason: "", retryAfter: 0 };
  const now = m.cfg.clock();
  const { end, tries, asked } = m.stream;
  const wait = Math.max(milliseconds(end?.reconnectAfter), why.retryAfter);
  if (why.reason !== "") m.stream.heard = now; // the server's refusal came through
  retry(m, now, wait);
  const later = () => connectAfter(m, now, Math.max(wait, m.backoff(tries)));
  switch (end?.code) {
    case EndCode.DRAIN: // the server spreads its clients itself
      if (tries > 0) later();
      break;
    case EndCode.TOKEN_EXPIRED:
      m.needRefresh = true;
      break;
    case EndCode.SESSION_REVOKED:
    case EndCode.REPLACED:
      m.stop({ ...why, reason: EndCode[end.code] });
      break;
    case EndCode.SLOW:
    case EndCode.RESYNC:
      later();
      break;
    default:
      later();
      if (why.reason === "INVALID_TOKEN") m.resync();
      refused(m, asked, why);
      m.failed(why);
  }
}
