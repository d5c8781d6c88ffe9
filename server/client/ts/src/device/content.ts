// The messages and members of a chat that is open.
import { type ChatHead, type Member as MemberInfo } from "#gen/parley/chat/v1/chat_pb.js";
import type { ListMembersResponse } from "#gen/parley/chat/v1/chat_service_pb.js";
import { type MembershipChange, MembershipChange_Kind, type Message } from "#gen/parley/message/v1/message_pb.js";
import type { ListChangesResponse, ListMessagesResponse } from "#gen/parley/message/v1/message_service_pb.js";
import { apply, type Body } from "./change.js";
import { type Chat, most } from "./chat.js";
import type { Member } from "./types.js";

/** Adds a page of the member list. The whole list is as old as its first page, and must not be older than base. */
export function membersPage(c: Chat, r: ListMembersResponse) {
  if (c.pageToken === "") {
    c.pages = [];
    c.pagesHead = r.head?.version ?? 0n;
  }
  c.pages.push(...r.members);
  c.head(r.head);
  c.raise(r.head?.version ?? 0n);
  c.pageToken = r.nextPageToken;
  if (c.pageToken !== "") return;
  if (c.pagesHead >= c.record.base) membersRead(c, c.pages, c.pagesHead);
  else c.pause();
  c.pages = [];
}

/** Adds a page of messages: the newest, or an older one. */
export function page(c: Chat, r: ListMessagesResponse, older: boolean) {
  if (!older) {
    load(c, r.head, r.head?.version ?? 0n, r.messages);
  } else {
    if (r.messages[0]) c.record.first = r.messages[0].sequence;
    for (const msg of r.messages) keep(c, msg);
  }
  c.record.hasOlder = r.hasMore;
  c.raise(r.head?.version ?? 0n);
  c.changed();
}

/** Begins with the newest page of messages, as of a version. */
function load(c: Chat, head: ChatHead | undefined, version: bigint, messages: Message[]) {
  const r = c.record;
  r.loaded = true;
  r.version = r.base = version;
  r.first = messages[0]?.sequence ?? (head?.sequence ?? 0n) + 1n;
  for (const message of messages) apply(c, { message });
  c.head(head);
}

/** Applies an answer of ListChanges. */
export function changes(c: Chat, after: bigint, res: ListChangesResponse) {
  const r = c.record;
  c.raise(res.head?.version ?? 0n);
  if (res.reset) {
    c.restart();
    load(c, res.head, res.version, res.messages);
    r.hasOlder = res.messages.length > 0 && r.first > 1n;
    return;
  }
  const merged = BigInt(res.changes.length) < res.version - after;
  for (const ch of res.changes) {
    const b: Body = ch.body.case ? { [ch.body.case]: ch.body.value, merged } : { merged };
    if (b.membershipChange?.userId === c.m.cfg.userId && ch.version > r.version) {
      c.forgetState();
      if (b.membershipChange.kind !== MembershipChange_Kind.REMOVED) {
        // A new membership, which may hide what the old one showed, or a change of role that a removal and an addition
        // may be merged into.
        c.restart();
        return;
      }
    }
    apply(c, b);
    // A removal and an addition may be merged into it.
    if (b.membershipChange?.kind === MembershipChange_Kind.ROLE_CHANGED) readMembersAgain(c);
  }
  if (res.version > r.version) {
    r.version = res.version;
    if (r.knownAt >= r.base) r.knownAt = most(r.knownAt, r.version);
    c.head(res.head);
  } else if (res.version <= after) {
    c.pause(); // nothing new, although something newer exists
  }
  c.changed();
}

/** Adds a message or replaces an older state of it. */
export function keep(c: Chat, msg: Message) {
  const list = c.messages;
  let at = list.length;
  while (at > 0 && list[at - 1]!.sequence >= msg.sequence) at--;
  const old = list[at];
  if (old?.sequence !== msg.sequence) list.splice(at, 0, msg);
  else if (msg.version > old.version) list[at] = msg;
  else return;
  c.changedMessages.push(msg);
  c.changed();
}

/** Drops all but the last messages, unless some are being read. */
export function trim(c: Chat, keep: number) {
  const r = c.record;
  if (!r.loaded || c.contentCall !== 0 || c.wantOlder || c.messages.length <= keep) return;
  c.messages = c.messages.slice(-keep);
  c.changedMessages = [...c.messages];
  c.clear = true;
  r.first = c.messages[0]!.sequence;
  r.hasOlder = true;
  c.changed();
}

const byUser = (a: Member, b: Member) => (a.userId < b.userId ? -1 : a.userId > b.userId ? 1 : 0);

/** Keeps a change of the member list. */
export function memberChanged(c: Chat, mc: MembershipChange) {
  const old = c.record.members.find((m) => m.userId === mc.userId);
  const now: Member = { userId: mc.userId, role: mc.role, version: mc.version, removed: false };
  if (mc.kind === MembershipChange_Kind.ADDED) now.joinedAt = mc.changedAt;
  else if (mc.kind === MembershipChange_Kind.REMOVED) now.removed = true;
  else if (!old || old.removed) {
    readMembersAgain(c); // joined and changed in one answer: when is not known
    return;
  } else now.joinedAt = old.joinedAt;
  if (old && now.version <= old.version) return;
  c.record.members = [...c.record.members.filter((m) => m !== old), now].sort(byUser);
}

/** Has the member list read again; one that is being read may be older than the reason for it. */
function readMembersAgain(c: Chat) {
  c.record.membersLoaded = false;
  c.membersCall = 0;
  c.pages = [];
  c.pageToken = "";
  c.wake();
}

/** Applies a member list as of a version. Changes that were applied meanwhile win over it by their versions. */
function membersRead(c: Chat, list: MemberInfo[], version: bigint) {
  const known = new Map(c.record.members.map((m) => [m.userId, m]));
  const members: Member[] = [];
  for (const { userId, role, joinedAt, version } of list) {
    const old = known.get(userId);
    members.push(old && old.version > version ? old : { userId, role, joinedAt, version, removed: false });
    known.delete(userId);
  }
  for (const old of known.values()) if (old.removed || old.version > version) members.push(old);
  c.record.members = members.sort(byUser);
  c.record.membersLoaded = true;
  c.changed();
}
