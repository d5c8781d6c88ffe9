// One chat as it stands in the list, and the membership of the user in it.
import { create } from "@bufbuild/protobuf";
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import {
  type Chat as ChatInfo,
  type ChatHead,
  type ChatOverview,
  ChatSchema,
  type Member as MemberInfo,
  type MemberState,
  MemberStateSchema,
} from "#gen/parley/chat/v1/chat_pb.js";
import type { Message } from "#gen/parley/message/v1/message_pb.js";
import type { Machine } from "./machine.js";
import type { ChatRecord, Failure } from "./types.js";

export const most = (a: bigint, b: bigint) => (a > b ? a : b);

/**
 * A chat of the user. What it shows in the list is known at knownAt; if it is loaded, its messages are known at version.
 * Both advance with frames that follow on them, and with reads where something is missing.
 */
export class Chat {
  messages: Message[] = []; // in order of sequence
  seen = 0; // step of the last sign that the user is a member
  listed = 0; // step of the last list or stream that named the chat

  // Calls under way, 0 for none. Results of other calls are ignored.
  chatCall = 0;
  contentCall = 0;
  membersCall = 0;
  readCall = 0;
  wantOlder = false;
  tries = 0; // failed reads in a row
  retryAt = 0;
  askAt = 0; // until then the stream may bring what is missing

  pages: MemberInfo[] = []; // of the member list being read
  pagesHead = 0n;
  pageToken = "";

  queued = false;
  dirty = false;
  clear = false;
  changedMessages: Message[] = []; // since the last take

  constructor(
    readonly m: Machine,
    readonly record: ChatRecord,
  ) {}

  get id() {
    return this.record.chatId;
  }

  /** Records that the chat must be stored and shown. */
  changed() {
    if (!this.dirty) {
      this.dirty = true;
      this.m.dirty.push(this);
      this.m.events.push({ changed: this.id });
    }
    this.wake();
  }

  /** Has the next take plan what the chat needs. */
  wake() {
    if (!this.queued) {
      this.queued = true;
      this.m.pendingChats.push(this);
    }
  }

  /** Drops the messages and members; they are loaded again if the chat is open. */
  restart() {
    const r = this.record;
    r.loaded = r.hasOlder = r.membersLoaded = false;
    r.version = r.base = r.first = 0n;
    r.members = [];
    this.messages = [];
    this.changedMessages = [];
    this.clear = true;
    this.contentCall = this.membersCall = 0;
    this.wantOlder = false;
    this.pages = [];
    this.pageToken = "";
    this.changed();
  }

  /** Records that a version exists. */
  raise(version: bigint) {
    if (version > this.record.newest) {
      this.record.newest = version;
      this.changed();
    }
  }

  /** Has the chat read for the list again. */
  forgetState() {
    this.record.knownAt = 0n;
    this.chatCall = 0;
    this.record.newest = most(this.record.newest, 1n); // every chat has a version: so it is requested
    this.changed();
  }

  head(h: ChatHead | undefined) {
    if (h && h.version > (this.record.head?.version ?? 0n)) {
      this.record.head = h;
      this.changed();
    }
  }

  metadata(chat: ChatInfo | undefined) {
    if (chat && (!this.record.chat || chat.version > this.record.chat.version)) {
      this.record.chat = chat;
      this.changed();
    }
  }

  /**
   * Applies a copy of the user's own state. Copies arrive in any order: marks only ever go up, the rest is that of the
   * highest revision. Servers that do not count revisions send 0; what they say is taken as it comes.
   */
  state(s: MemberState | undefined) {
    if (!s) return;
    const old = this.record.state;
    const stale = old && (s.revision < old.revision || (s.revision === old.revision && s.revision > 0n));
    const newest = stale ? old : s;
    const readSequence = most(s.readSequence, old?.readSequence ?? 0n);
    const state = create(MemberStateSchema, {
      ...this.ownUnread(old, newest, readSequence),
      readSequence,
      joinedSequence: most(s.joinedSequence, old?.joinedSequence ?? 0n),
      deliveredSequence: most(s.deliveredSequence, old?.deliveredSequence ?? 0n),
      peerReadSequence: most(s.peerReadSequence, old?.peerReadSequence ?? 0n),
      mutedUntil: newest.mutedUntil,
      archived: newest.archived,
      role: newest.role,
      revision: newest.revision,
    });
    this.record.state = state;
    if (this.record.readTo > 0n && state.readSequence >= this.record.readTo) this.record.readTo = 0n;
    this.changed();
  }

  /**
   * What a state says of the user's own messages after a read position, with those of a later time that are here. If this
   * device has counted some, and they may not all be here, the chat is read again. A state with a lower position counts
   * too many of them: then those that are here count, and at least the last.
   */
  private ownUnread(old: MemberState | undefined, newest: MemberState, read: bigint) {
    let { ownUnreadCount, ownSequence } = newest;
    if (newest === old && read === newest.readSequence) return { ownUnreadCount, ownSequence };
    const from = most(ownSequence, read);
    if (read > newest.readSequence) {
      const passed = this.own(read, ownSequence);
      // The last one counts even if it is not here.
      ownUnreadCount = passed.count + (ownSequence > read && passed.last !== ownSequence ? 1n : 0n);
      if (ownUnreadCount === 0n) ownSequence = 0n;
    }
    const later = this.own(from);
    const { loaded, first } = this.record;
    if ((old?.ownSequence ?? 0n) > from && (!loaded || first > from + 1n)) this.forgetState();
    return { ownUnreadCount: ownUnreadCount + later.count, ownSequence: most(ownSequence, later.last) };
  }

  /** The user's messages that are here after a sequence, up to another one. */
  private own(after: bigint, to?: bigint) {
    let count = 0n;
    let last = 0n;
    for (let i = this.messages.length - 1; i >= 0 && this.messages[i]!.sequence > after; i--) {
      const { senderId, sequence } = this.messages[i]!;
      if (senderId !== this.m.cfg.userId || (to !== undefined && sequence > to)) continue;
      count++;
      last = most(last, sequence);
    }
    return { count, last };
  }

  /** Lets the chat wait before it retries. */
  pause(why?: Failure) {
    this.retryAt = this.m.cfg.clock() + Math.max(why?.retryAfter ?? 0, this.m.backoff(this.tries));
    this.tries++;
  }
}

export const emptyRecord = (chatId: string): ChatRecord => ({
  chatId,
  newest: 0n,
  knownAt: 0n,
  open: false,
  loaded: false,
  version: 0n,
  base: 0n,
  first: 0n,
  hasOlder: false,
  members: [],
  membersLoaded: false,
  readTo: 0n,
});

/** A chat with another number of members. */
export const withCount = (c: ChatInfo, memberCount: number, updatedAt: Timestamp | undefined, version: bigint) =>
  create(ChatSchema, {
    chatId: c.chatId,
    type: c.type,
    name: c.name,
    status: c.status,
    history: c.history,
    createdBy: c.createdBy,
    memberCount,
    directUserIds: c.directUserIds,
    createdAt: c.createdAt,
    updatedAt,
    version,
  });

/** Applies a chat as it was read for the list. */
export function overview(m: Machine, ov: ChatOverview, listed: boolean) {
  const version = ov.head?.version ?? 0n;
  const c = member(m, ov.chat?.chatId ?? "", version, listed);
  if (!c) return;
  const r = c.record;
  if (r.loaded && r.chat && (ov.state?.joinedSequence ?? 0n) > (r.state?.joinedSequence ?? 0n)) {
    c.restart(); // a new membership, which may hide what the old one showed
  }
  c.metadata(ov.chat);
  c.head(ov.head);
  c.state(ov.state);
  if (!r.loaded) r.knownAt = most(r.knownAt, version);
  // What was applied since base is in chat and head already.
  else if (version >= r.base) r.knownAt = most(most(r.knownAt, version), r.version);
  c.changed();
}

/** Drops the chat: the user is not a member as of a version. */
export function leave(m: Machine, chatId: string, version: bigint) {
  m.left.set(chatId, most(m.left.get(chatId) ?? 0n, version));
  if (m.chats.delete(chatId)) {
    m.removedChats.push(chatId);
    m.events.push({ removed: chatId });
  }
}

/**
 * Handles a removal of the user in a version. Every version that the device received, it received for a chat of the
 * user: a removal that is not newer was followed by an addition.
 */
export function removed(m: Machine, chatId: string, version: bigint) {
  const c = m.chats.get(chatId);
  if (!c || version > c.record.newest) leave(m, chatId, version);
}

/**
 * Handles the answer to a read or a subscription that was requested when newest was the newest version. A user who has
 * been added since became a member again in a version newer than that.
 */
export function notAMember(m: Machine, c: Chat, newest: bigint) {
  if (c.record.newest > newest) c.wake();
  // The removal itself has a version that is not known here, at least the next.
  else leave(m, c.id, c.record.newest + 1n);
}

/**
 * Returns the chat, because something of it reached the device that only members get; nothing if that is older than the
 * removal that the device knows of. listed says whether it came by a list or a stream, not as an answer about this chat.
 */
export function member(m: Machine, chatId: string, version: bigint, listed: boolean): Chat | undefined {
  let c = m.chats.get(chatId);
  if (!c) {
    const left = m.left.get(chatId);
    if (left !== undefined) {
      if (version < left) return undefined;
      m.left.delete(chatId);
    }
    c = m.add(chatId);
  }
  c.seen = m.step;
  c.askAt = 0;
  if (listed) c.listed = m.step;
  c.raise(version);
  return c;
}
