// What an app shows: the user's chats, each with a view that stays the same object until the chat changes, and how the
// connection is.
import { emptySnapshot, storeInto } from "./device/snapshot.js";
import type { Batch, LeftChat, OutboxEntry, RefusedMessage, Snapshot } from "./device/types.js";
import { type ChatView, viewIn } from "./device/view.js";
import { callEach } from "./report.js";
import type { Status } from "./runner.js";

const noneRefused: readonly RefusedMessage[] = [];
const noneLeft: readonly LeftChat[] = [];

export class State {
  status: Status = { connection: "connecting" };
  private snapshot = emptySnapshot();
  private readonly views = new Map<string, ChatView | undefined>();
  private list: readonly ChatView[] | undefined;
  private readonly listeners = new Set<() => void>();

  /** Starts from what was stored. */
  replace(snapshot: Snapshot, status: Status) {
    this.snapshot = snapshot;
    this.status = status;
    this.views.clear();
    this.tell();
  }

  apply(batch: Batch, status: Status) {
    const of = new Map(this.snapshot.outbox.map((u) => [u.clientMessageId, u.chatId]));
    storeInto(this.snapshot, batch);
    this.status = status;
    for (const c of batch.chats) this.views.delete(c.record.chatId);
    for (const id of batch.removed) this.views.delete(id);
    for (const u of batch.outbox) this.views.delete(u.chatId);
    for (const id of batch.done) this.views.delete(of.get(id) ?? "");
    this.tell();
  }

  chat(chatId: string): ChatView | undefined {
    if (!this.views.has(chatId)) this.views.set(chatId, viewIn(this.snapshot, chatId));
    return this.views.get(chatId);
  }

  /** The chats that were read, last changed first. */
  chats(): readonly ChatView[] {
    return (this.list ??= [...this.snapshot.chats.keys()]
      .map((id) => this.chat(id)!)
      .filter((v) => v.chat)
      .sort((a, b) => changedAt(b) - changedAt(a) || (a.chatId < b.chatId ? -1 : 1)));
  }

  outbox(): readonly OutboxEntry[] {
    return this.snapshot.outbox;
  }

  /** Oldest first; the same list until it changes. */
  refused(): readonly RefusedMessage[] {
    return this.snapshot.remnants?.refused ?? noneRefused;
  }

  left(): readonly LeftChat[] {
    return this.snapshot.remnants?.left ?? noneLeft;
  }

  /** What a tab that comes later starts with. */
  stored(): Snapshot {
    return this.snapshot;
  }

  subscribe(listener: () => void): () => void {
    const own = () => listener(); // the same function may subscribe twice
    this.listeners.add(own);
    return () => this.listeners.delete(own);
  }

  private tell() {
    this.list = undefined;
    callEach(this.listeners);
  }
}

const changedAt = ({ head }: ChatView) => Number(head?.changedAt?.seconds ?? 0n) * 1000 + (head?.changedAt?.nanos ?? 0) / 1e6;
