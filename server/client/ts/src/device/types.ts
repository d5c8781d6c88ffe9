// What a Machine is given, wants and stores.
import type { Message as AnyMessage } from "@bufbuild/protobuf";
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import type { Code } from "@connectrpc/connect";
import type { Chat, ChatHead, MemberRole, MemberState } from "#gen/parley/chat/v1/chat_pb.js";
import type { GetChatRequest, ListMembersRequest } from "#gen/parley/chat/v1/chat_service_pb.js";
import type {
  AckRequest,
  ExtendRequest,
  SubscribeRequest,
  SyncRequest,
} from "#gen/parley/delivery/v1/delivery_service_pb.js";
import type { Message } from "#gen/parley/message/v1/message_pb.js";
import type {
  ListChangesRequest,
  ListMessagesRequest,
  MarkReadRequest,
  SendMessageRequest,
} from "#gen/parley/message/v1/message_service_pb.js";

/** What each kind of call asks. `refresh` gets a new bearer token, `extend` goes with the newest one. */
export interface Requests {
  subscribe: SubscribeRequest;
  sync: SyncRequest;
  ack: AckRequest;
  extend: ExtendRequest;
  getChat: GetChatRequest;
  listMembers: ListMembersRequest;
  listMessages: ListMessagesRequest;
  listChanges: ListChangesRequest;
  sendMessage: SendMessageRequest;
  markRead: MarkReadRequest;
}

export type Kind = keyof Requests | "refresh";

/**
 * A call that a Machine wants made. Each but subscribe ends with one `result`. history is its header Parley-History; none
 * if it is empty.
 */
export type Call =
  | { [K in keyof Requests]: { id: number; kind: K; request: Requests[K]; history: string } }[keyof Requests]
  | { id: number; kind: "refresh" }
  | { id: number; kind: "closeStream"; stream: number };

/** Why a call or a stream failed. */
export interface Failure {
  code: Code;
  /** Reason of the error's ErrorInfo; empty if it has none. */
  reason: string;
  /** Milliseconds, of the error's RetryInfo. */
  retryAfter: number;
  message?: string;
}

/** A message on its way. The server remembers its id for seven days: repeating the call stores it once. */
export interface OutboxEntry {
  clientMessageId: string;
  chatId: string;
  content: string;
  /** Milliseconds since 1970. */
  createdAt: number;
}

/** A message that is not sent any more: the server refused it, or it is too old. */
export interface RefusedMessage {
  entry: OutboxEntry;
  /** That of the server's error. */
  reason: string;
}

/** A chat that was one of the user's. */
export interface LeftChat {
  chatId: string;
  /** Of a group; empty for a direct chat. */
  name: string;
  /** The user who ended the membership; empty if it is not known. */
  changedBy: string;
}

/** What stays of messages and chats that are gone. */
export interface Remnants {
  /** Oldest first. */
  refused: RefusedMessage[];
  left: LeftChat[];
}

/** Something that happened. One field is set. */
export interface Event {
  /** This chat, or its place in the list. */
  changed?: string;
  /** This chat is not one of the user's any more. */
  removed?: string;
  /** A message was given up. */
  sendFailed?: { entry: OutboxEntry; why: Failure };
  /** The stream is open and has brought everything. */
  connected?: true;
  polling?: true; // with connected: by polls
  /** The device does nothing more until `resume`. */
  stopped?: Failure;
}

/** A present or former member of a chat. */
export interface Member {
  userId: string;
  role: MemberRole;
  joinedAt?: Timestamp | undefined;
  /** Of the change that made it so. */
  version: bigint;
  removed: boolean;
}

/** What a device keeps of one chat besides its messages. What it points to is never changed, only replaced. */
export interface ChatRecord {
  chatId: string;
  chat?: Chat | undefined;
  head?: ChatHead | undefined;
  /** The user's own. */
  state?: MemberState | undefined;
  /** Newest version that is known to exist. */
  newest: bigint;
  /** chat and head are not older than this version. */
  knownAt: bigint;
  /** The app needs the messages. */
  open: boolean;
  /** The fields below and the messages mean something. */
  loaded: boolean;
  /** Every change up to here is applied. */
  version: bigint;
  /** Version that loading began with. */
  base: bigint;
  /** Sequence from which on messages are complete. */
  first: bigint;
  hasOlder: boolean;
  /** In order of user id, former ones included. */
  members: readonly Member[];
  membersLoaded: boolean;
  /** The app's mark that the server has not confirmed. */
  readTo: bigint;
}

export interface Session {
  /** Of the last synchronisation; empty: list all chats again. */
  token: string;
  /** With commit, what the device was shown at most, of the store's history. */
  generation: string;
  /** Missing in what earlier releases stored. */
  commit?: bigint | undefined;
}

export interface ChatChange {
  record: ChatRecord;
  /** Drop all stored messages of the chat first. */
  clear: boolean;
  /** To be added or replaced, by sequence. */
  messages: Message[];
}

/** Changes to be stored together, all or nothing. */
export interface Batch {
  session?: Session | undefined;
  removed: string[];
  chats: ChatChange[];
  outbox: OutboxEntry[];
  /** client_message_ids of messages that are not on their way any more. */
  done: string[];
  /** To be added or replaced; dropped has ids of refused messages and of chats. */
  remnants?: (Remnants & { dropped: string[] }) | undefined;
}

export const emptyBatch = (): Batch => ({ removed: [], chats: [], outbox: [], done: [] });

export const isEmpty = (b: Batch) =>
  !b.session && !b.remnants && b.removed.length + b.chats.length + b.outbox.length + b.done.length === 0;

/** Everything that a device has stored. */
export interface Snapshot {
  session: Session;
  chats: Map<string, ChatRecord>;
  /** By chat, in order of sequence. */
  messages: Map<string, Message[]>;
  /** Oldest first. */
  outbox: OutboxEntry[];
  /** Missing in what earlier releases stored. */
  remnants?: Remnants | undefined;
}

/**
 * Keeps what a device must remember across restarts. A batch is written before any call is made that the machine made
 * together with it: so a token is never stored without what came before it, and no message is sent that was not stored.
 */
export interface Storage {
  load(): Promise<Snapshot>;
  store(batch: Batch): Promise<void>;
  /** Forgets everything, or all but the outbox and the remnants. */
  clear(keepUnsent: boolean): Promise<void>;
}

export interface MachineConfig {
  userId: string;
  /** Elapsed time in milliseconds from any start, by a monotonic clock. */
  clock: () => number;
  /** Milliseconds since 1970, for times that are stored or come from the server; by default clock. */
  wall?: () => number;
  /** In [0, 1), for waits. */
  random: () => number;
  /** Messages and changes requested at a time; 0: the server's default. */
  pageSize?: number;
  /** Without a token, let the stream list the chats instead of Sync. */
  subscribeFirst?: boolean;
  /** A stream that sends nothing for so many milliseconds is closed. */
  silence?: number;
  /** How long before a stream's end it is extended, in milliseconds. */
  extendBefore?: number;
}

/** A response of any kind. */
export type Response = AnyMessage;
