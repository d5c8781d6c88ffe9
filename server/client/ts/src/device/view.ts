// A chat as it is shown.
import type { Chat, ChatHead, MemberState } from "#gen/parley/chat/v1/chat_pb.js";
import type { Message } from "#gen/parley/message/v1/message_pb.js";
import { most } from "./chat.js";
import type { ChatRecord, Member, OutboxEntry, Snapshot } from "./types.js";

/** A chat as a device knows it. What it points to must not be changed. */
export interface ChatView {
  chatId: string;
  chat?: Chat | undefined;
  head?: ChatHead | undefined;
  /** The user's own. */
  state?: MemberState | undefined;
  /** Messages of others that the user has not read. */
  unread: bigint;
  /** How far the other person of a direct chat has read, as far as it is known; 0 in groups. */
  peerRead: bigint;
  open: boolean;
  /** The fields below mean something. */
  loaded: boolean;
  version: bigint;
  /** Sequence from which on messages are complete. */
  first: bigint;
  hasOlder: boolean;
  messages: readonly Message[];
  /** Present ones; undefined until they were read. */
  members?: readonly Member[] | undefined;
  /** The user's messages that the server has not confirmed, oldest first. */
  outbox: readonly OutboxEntry[];
}

export function viewOf(
  r: ChatRecord,
  messages: readonly Message[],
  outbox: readonly OutboxEntry[],
): ChatView {
  const { chatId, chat, head, state, open, loaded, version, first, hasOlder } = r;
  const last = most(head?.sequence ?? 0n, state?.ownSequence ?? 0n); // a state may be newer than the head
  const unread = last - (state?.readSequence ?? 0n) - (state?.ownUnreadCount ?? 0n);
  return {
    chatId,
    chat,
    head,
    state,
    unread: unread > 0n ? unread : 0n,
    peerRead: state?.peerReadSequence ?? 0n,
    open,
    loaded,
    version,
    first,
    hasOlder,
    messages,
    members: r.membersLoaded ? r.members.filter((m) => !m.removed) : undefined,
    outbox: outbox.filter((u) => u.chatId === chatId),
  };
}

/** A chat of a snapshot; undefined if it is not one of the user's, as far as known. */
export function viewIn(s: Snapshot, chatId: string): ChatView | undefined {
  const r = s.chats.get(chatId);
  return r && viewOf(r, s.messages.get(chatId) ?? [], s.outbox);
}
