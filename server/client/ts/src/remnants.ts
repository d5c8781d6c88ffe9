// What stays of a message that was refused and of a chat that was left: both are stored together with the change that
// removes the message or the chat from where they were.
import type { Frame } from "#gen/parley/delivery/v1/frame_pb.js";
import { MembershipChange_Kind } from "#gen/parley/message/v1/message_pb.js";
import type { Batch, Event, Failure, RefusedMessage, Remnants } from "./device/types.js";
import { warn } from "./report.js";
import type { State } from "./state.js";

const maxRefused = 200;
const maxLeft = 100;
const none: Remnants = { refused: [], left: [] };

/** Adds to the batches of the tab that leads what must stay. */
export class RemnantKeeper {
  private dropped: string[] = []; // until the next batch
  private readonly gone = new Set<string>(); // dropped, and in the state until the batch is stored
  private readonly removers = new Map<string, string>(); // user ids by chat

  constructor(
    private readonly userId: string,
    private readonly state: State,
  ) {}

  /** Has the next batch drop a refused message. False if there is none: it was dropped, or sent again, before. */
  drop(clientMessageId: string): boolean {
    const { remnants = none } = this.state.stored();
    const there = remnants.refused.some((r) => r.entry.clientMessageId === clientMessageId);
    if (!there || this.gone.has(clientMessageId)) return false;
    this.dropped.push(clientMessageId);
    this.gone.add(clientMessageId);
    return true;
  }

  /** Notes the user who removed this one from a chat, before the device applies the frames. */
  note(frames: Frame[]) {
    for (const { chatId, body } of frames) {
      if (body.case !== "membershipChange" || body.value.userId !== this.userId) continue;
      if (body.value.kind === MembershipChange_Kind.REMOVED) this.removers.set(chatId, body.value.changedBy);
    }
  }

  /** Completes a batch. The state is the one before it, because batches are stored one after the other. */
  complete(batch: Batch, events: Event[]) {
    const { chats, remnants: old = none } = this.state.stored();
    const refused = refusedIn(events);
    const left = batch.removed.flatMap((chatId) => {
      const chat = chats.get(chatId)?.chat;
      return chat ? [{ chatId, name: chat.name, changedBy: this.removers.get(chatId) ?? "" }] : [];
    });
    const back = new Set(batch.chats.flatMap(({ record: r }) => (r.chat ? [r.chatId] : []))); // members again
    const chosen = new Set(this.dropped);
    const dropped = [
      ...old.refused.map((r) => r.entry.clientMessageId).filter((id) => chosen.has(id)),
      ...old.left.map((l) => l.chatId).filter((id) => back.has(id)),
    ];
    this.dropped = [];
    const listed = new Set(old.refused.map((r) => r.entry.clientMessageId));
    for (const id of this.gone) if (!listed.has(id)) this.gone.delete(id);
    this.removers.clear();
    const over = old.refused.filter((r) => !chosen.has(r.entry.clientMessageId));
    const excess = over.slice(0, Math.max(over.length + refused.length - maxRefused, 0));
    if (excess.length > 0) warn(`more than ${maxRefused} refused messages: dropped the oldest ${excess.length}`);
    dropped.push(...excess.map((r) => r.entry.clientMessageId));
    dropped.push(...old.left.slice(0, Math.max(old.left.length + left.length - maxLeft, 0)).map((l) => l.chatId));
    if (refused.length + left.length + dropped.length > 0) batch.remnants = { refused, left, dropped };
  }
}

/** The messages that were given up. */
export const refusedIn = (events: Event[]): RefusedMessage[] =>
  events.flatMap(({ sendFailed: f }) => (f ? [{ entry: f.entry, reason: reasonOf(f.why) }] : []));

const reasonOf = (why: Failure) => why.reason || (why.message ?? "");
