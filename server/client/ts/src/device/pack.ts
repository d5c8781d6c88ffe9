// Batches and snapshots in a form that can be stored, and sent to another tab, of any release: messages of protobuf are in
// binary, where fields that one release does not know do no harm.
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { TimestampSchema } from "@bufbuild/protobuf/wkt";
import { ChatHeadSchema, ChatSchema, MemberStateSchema } from "#gen/parley/chat/v1/chat_pb.js";
import { type Message, MessageSchema } from "#gen/parley/message/v1/message_pb.js";
import type { Batch, ChatRecord, Member, OutboxEntry, Session, Snapshot } from "./types.js";

type Bytes = Uint8Array;

export type PackedMember = Omit<Member, "joinedAt"> & { joinedAt?: Bytes | undefined };

export type PackedRecord = Omit<ChatRecord, "chat" | "head" | "state" | "members"> & {
  chat?: Bytes | undefined;
  head?: Bytes | undefined;
  state?: Bytes | undefined;
  members: PackedMember[];
};

export interface PackedBatch {
  session?: Session | undefined;
  removed: string[];
  chats: { record: PackedRecord; clear: boolean; messages: { sequence: number; bytes: Bytes }[] }[];
  outbox: OutboxEntry[];
  done: string[];
  remnants?: Batch["remnants"];
}

export function packRecord(r: ChatRecord): PackedRecord {
  return {
    ...r,
    chat: r.chat && toBinary(ChatSchema, r.chat),
    head: r.head && toBinary(ChatHeadSchema, r.head),
    state: r.state && toBinary(MemberStateSchema, r.state),
    members: r.members.map((m) => ({ ...m, joinedAt: m.joinedAt && toBinary(TimestampSchema, m.joinedAt) })),
  };
}

export function unpackRecord(r: PackedRecord): ChatRecord {
  return {
    ...r,
    chat: r.chat && fromBinary(ChatSchema, r.chat),
    head: r.head && fromBinary(ChatHeadSchema, r.head),
    state: r.state && fromBinary(MemberStateSchema, r.state),
    members: r.members.map((m) => ({ ...m, joinedAt: m.joinedAt && fromBinary(TimestampSchema, m.joinedAt) })),
  };
}

export const unpackMessage = (bytes: Bytes): Message => fromBinary(MessageSchema, bytes);

export function packBatch(b: Batch): PackedBatch {
  return {
    ...b,
    chats: b.chats.map(({ record, clear, messages }) => ({
      record: packRecord(record),
      clear,
      messages: messages.map((m) => ({ sequence: Number(m.sequence), bytes: toBinary(MessageSchema, m) })),
    })),
  };
}

export function unpackBatch(b: PackedBatch): Batch {
  return {
    ...b,
    chats: b.chats.map(({ record, clear, messages }) => ({
      record: unpackRecord(record),
      clear,
      messages: messages.map((m) => unpackMessage(m.bytes)),
    })),
  };
}

/** A snapshot as the batch that makes it of nothing. */
export function asBatch(s: Snapshot): Batch {
  const chats = [...s.chats.values()].map((record) => ({
    record,
    clear: true,
    messages: s.messages.get(record.chatId) ?? [],
  }));
  const remnants = s.remnants && { ...s.remnants, dropped: [] };
  return { session: s.session, removed: [], chats, outbox: s.outbox, done: [], remnants };
}
