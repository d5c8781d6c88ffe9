// Applies what changed in a chat.
import { create } from "@bufbuild/protobuf";
import {
  type Chat as ChatInfo,
  ChatHeadSchema,
  MemberStateSchema,
  MessagePreviewSchema,
} from "#gen/parley/chat/v1/chat_pb.js";
import {
  type MembershipChange,
  MembershipChange_Kind,
  type Message,
} from "#gen/parley/message/v1/message_pb.js";
import { type Chat, most, withCount } from "./chat.js";
import { keep, memberChanged } from "./content.js";

/** What a change shows: one of the fields, or none that is known here. */
export interface Body {
  message?: Message;
  membershipChange?: MembershipChange;
  chat?: ChatInfo;
  merged?: boolean; // several changes look like this one
}

/** Applies a change that follows on after, if it does follow. */
export function change(c: Chat, after: bigint, version: bigint, b: Body) {
  const r = c.record;
  const own = b.membershipChange?.userId === c.m.cfg.userId;
  if (r.loaded && after <= r.version && r.version < version) {
    if (own && b.membershipChange?.kind === MembershipChange_Kind.ADDED) {
      // A new membership, which may hide what the old one showed.
      c.forgetState();
      c.restart();
      return;
    }
    apply(c, b);
    r.version = version;
    if (r.knownAt >= r.base) r.knownAt = most(r.knownAt, version);
    follow(c, after, version, b);
    if (own) c.forgetState(); // for the role
    c.changed();
  } else if (!r.loaded && r.knownAt > 0n && after <= r.knownAt && r.knownAt < version) {
    apply(c, b);
    r.knownAt = version;
    follow(c, after, version, b);
    if (own) c.forgetState();
    c.changed();
  } else {
    c.wake();
  }
}

/** Moves the head on by a change. */
function follow(c: Chat, after: bigint, version: bigint, b: Body) {
  const h = c.record.head;
  if (!h || after > h.version || h.version >= version) return;
  let { sequence, membershipVersion, changedAt, lastMessage } = h;
  if (b.message) {
    if (b.message.sequence > sequence) {
      sequence = b.message.sequence;
      changedAt = b.message.createdAt;
      lastMessage = create(MessagePreviewSchema, {
        sequence,
        senderId: b.message.senderId,
        text: preview(b.message.content),
      });
    }
  } else if (b.membershipChange) {
    membershipVersion++;
    changedAt = b.membershipChange.changedAt;
  } else if (b.chat) {
    membershipVersion++;
    changedAt = b.chat.updatedAt;
  }
  c.record.head = create(ChatHeadSchema, { version, sequence, membershipVersion, changedAt, lastMessage });
}

/** Keeps what a change shows, each object in its newest version. */
export function apply(c: Chat, b: Body) {
  const r = c.record;
  if (b.message) {
    if (b.message.senderId === c.m.cfg.userId) ownMessage(c, b.message.sequence);
    if (r.loaded && b.message.sequence >= r.first) keep(c, b.message);
  } else if (b.membershipChange) {
    const mc = b.membershipChange;
    if (!r.chat || b.merged || (r.loaded && r.knownAt < r.base)) {
      // Nothing to count in, or it is not known when the last of several changes was, or what is there lacks earlier
      // ones, a new name perhaps: the chat must be read with this change.
      r.base = most(r.base, mc.version);
    } else if (mc.version > r.chat.version && mc.memberCount > 0) {
      r.chat = withCount(r.chat, mc.memberCount, mc.changedAt, mc.version);
    }
    if (r.loaded) memberChanged(c, mc);
  } else if (b.chat) {
    c.metadata(b.chat);
  }
}

/** Counts a message of the user, which is not unread. The server reports nothing for it. */
function ownMessage(c: Chat, ownSequence: bigint) {
  const s = c.record.state;
  if (!s || ownSequence <= most(s.readSequence, s.ownSequence)) return; // not known yet, read, or counted
  c.record.state = create(MemberStateSchema, { ...s, ownUnreadCount: s.ownUnreadCount + 1n, ownSequence });
  c.changed();
}

const maxPreview = 128; // bytes of a message that the list shows

function preview(text: string): string {
  const bytes = new TextEncoder().encode(text);
  if (bytes.length <= maxPreview) return text;
  let n = maxPreview;
  while (n > 0 && (bytes[n]! & 0xc0) === 0x80) n--;
  return new TextDecoder().decode(bytes.subarray(0, n));
}
