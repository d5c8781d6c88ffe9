// A device's storage in memory.
import type { Message } from "#gen/parley/message/v1/message_pb.js";
import type { Batch, Remnants, Snapshot } from "./types.js";

export const emptySnapshot = (): Snapshot => ({
  session: { token: "", generation: "", commit: 0n },
  chats: new Map(),
  messages: new Map(),
  outbox: [],
});

/** Applies a batch. Lists of messages are replaced, not changed, so that who has one may keep it. */
export function storeInto(s: Snapshot, b: Batch) {
  for (const id of b.removed) {
    s.chats.delete(id);
    s.messages.delete(id);
  }
  for (const { record, clear, messages } of b.chats) {
    const id = record.chatId;
    s.chats.set(id, record);
    if (clear) s.messages.delete(id);
    if (messages.length > 0) s.messages.set(id, merge(s.messages.get(id) ?? [], messages));
  }
  if (b.outbox.length + b.done.length > 0) {
    const known = new Set(s.outbox.map((u) => u.clientMessageId));
    const done = new Set(b.done);
    s.outbox = [...s.outbox, ...b.outbox.filter((u) => !known.has(u.clientMessageId))].filter(
      (u) => !done.has(u.clientMessageId),
    );
  }
  if (b.session) s.session = b.session;
  if (b.remnants) s.remnants = remnantsAfter(s.remnants, b.remnants);
}

function remnantsAfter(old: Remnants | undefined, { refused, left, dropped }: NonNullable<Batch["remnants"]>): Remnants {
  const gone = new Set([...dropped, ...refused.map((r) => r.entry.clientMessageId), ...left.map((l) => l.chatId)]);
  return {
    refused: [...(old?.refused ?? []).filter((r) => !gone.has(r.entry.clientMessageId)), ...refused],
    left: [...(old?.left ?? []).filter((l) => !gone.has(l.chatId)), ...left],
  };
}

function merge(old: Message[], more: Message[]): Message[] {
  const last = old.at(-1);
  if (more.length === 1 && (!last || more[0]!.sequence > last.sequence)) return [...old, more[0]!];
  const all = new Map(old.map((m) => [m.sequence, m]));
  for (const m of more) all.set(m.sequence, m);
  return [...all.values()].sort((a, b) => (a.sequence < b.sequence ? -1 : 1));
}
