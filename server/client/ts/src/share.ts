// One device for all tabs of a browser: the tab that has the lock leads, it alone has a stream and writes; the others are
// sent what it stored and send it what their users do.
import { elapsed } from "./elapsed.js";
import { uuid } from "./uuid.js";
import { asBatch, packBatch, type PackedBatch, unpackBatch } from "./device/pack.js";
import { emptySnapshot, storeInto } from "./device/snapshot.js";
import type { RefusedMessage, Snapshot } from "./device/types.js";
import type { Status } from "./runner.js";

/** What a user does in any tab. Each may be done twice: the second time changes nothing. */
export type Command =
  | { do: "open" | "evict" | "loadOlder"; chatId: string }
  | { do: "trim"; chatId: string; keep: number }
  | { do: "markRead"; chatId: string; sequence: bigint }
  | { do: "send"; chatId: string; content: string; id: string; instead?: string } // of a refused one
  | { do: "dismiss"; id: string }
  | { do: "learn"; overview: Uint8Array; history: string }
  | { do: "resume" | "check" };

/** What a tab tells the others. */
type Note =
  | { note: "who"; tab: string } // leads, and what there is
  | { note: "all"; leader: string; to: string; batch: PackedBatch; status: Status }
  | { note: "news"; leader: string; batch: PackedBatch; status: Status; failed: RefusedMessage[] }
  | { note: "profiles"; leader: string; changed: Changed[] }
  | { note: "do"; tab: string; id: number; command: Command }
  | { note: "done"; tab: string; id: number };

/** A person's profile has this version by now. */
export interface Changed {
  userId: string;
  version: bigint;
}

export interface Leader {
  /** What is stored, for a tab that comes. */
  all(): { snapshot: Snapshot; status: Status };
  execute(command: Command, stored: () => void): void;
}

export interface ShareConfig {
  name: string;
  /** This tab leads from now on, until unlead. */
  lead: () => Promise<Leader>;
  unlead: () => void;
  onAll: (snapshot: Snapshot, status: Status) => void;
  onNews: (batch: PackedBatch, status: Status, failed: RefusedMessage[]) => void;
  onProfiles: (changed: Changed[]) => void;
}

const impatience = 5000; // without an answer of the leader
const pause = 500; // until a tab that led waits for the lock again
const longPause = 30_000; // if its storage failed

export const canShare = () =>
  typeof document !== "undefined" && navigator.locks !== undefined && typeof BroadcastChannel !== "undefined";

export class Share {
  private readonly tab = uuid();
  private readonly channel: BroadcastChannel;
  private leader: Leader | undefined; // this tab
  private following = ""; // the tab that leads
  private readonly pending = new Map<number, Command>(); // not stored yet
  private lastId = 0;
  private heard = elapsed();
  private asked = 0;
  private readonly timer: ReturnType<typeof setInterval>;
  private closed = false;
  private frozen = false;
  private waiting = new AbortController(); // for the lock
  private release: () => void = () => {};
  private wait = pause;
  private pausing: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly cfg: ShareConfig) {
    this.channel = new BroadcastChannel(cfg.name);
    this.channel.onmessage = (e: MessageEvent<Note>) => this.note(e.data);
    this.timer = setInterval(() => this.watch(), impatience / 2);
    this.queue();
    this.say({ note: "who", tab: this.tab });
  }

  /** Does a command here or where the leader is, again with the next leader if this one goes. */
  execute(command: Command) {
    const id = ++this.lastId;
    this.pending.set(id, command);
    this.perform(id, command);
  }

  /** Tells the others what was stored. */
  news(batch: PackedBatch, status: Status, failed: RefusedMessage[]) {
    this.say({ note: "news", leader: this.tab, batch, status, failed });
  }

  /** Tells the others of newer profiles. */
  profiles(changed: Changed[]) {
    this.say({ note: "profiles", leader: this.tab, changed });
  }

  get leads(): boolean {
    return this.leader !== undefined;
  }

  /** Has another tab lead, if there is one. After a failure this one waits long before it leads again. */
  stepDown(failed = false) {
    if (failed) this.wait = longPause;
    if (!this.leader) return;
    this.leader = undefined;
    this.cfg.unlead();
    this.release();
    this.following = "";
    this.say({ note: "who", tab: this.tab }); // who took its place has spoken already
  }

  /**
   * The browser is about to freeze this tab. The lock, or a place in the queue for it, would have the other tabs wait
   * for a tab that does nothing.
   */
  freeze() {
    this.frozen = true;
    this.stepDown();
    this.waiting.abort();
  }

  thaw() {
    if (!this.frozen) return;
    this.frozen = false;
    this.heard = elapsed();
    this.queue();
  }

  close() {
    this.closed = true;
    clearInterval(this.timer);
    this.waiting.abort();
    this.stepDown();
    this.release();
    this.channel.close();
  }

  private say(note: Note) {
    if (!this.closed) this.channel.postMessage(note);
  }

  /** Waits for the lock, leads while it has it, and waits again if it was taken away. */
  private queue(steal = false) {
    this.waiting.abort();
    const waiting = (this.waiting = new AbortController());
    const over = () => {
      if (waiting === this.waiting) this.lost();
    };
    const options = steal ? { steal } : { signal: waiting.signal };
    navigator.locks.request(this.cfg.name, options, () => this.hold()).then(over, over);
  }

  private lost() {
    this.stepDown();
    this.pausing = setTimeout(() => this.again(), this.wait);
    this.wait = pause;
  }

  /** Waits for the lock now, if the tab waits until it may. */
  again() {
    if (this.pausing === undefined) return;
    clearTimeout(this.pausing);
    this.pausing = undefined;
    if (!this.closed && !this.frozen) this.queue();
  }

  private async hold(): Promise<void> {
    if (this.closed || this.frozen || this.leader) return;
    const released = new Promise<void>((resolve) => (this.release = resolve));
    const leader = await this.cfg.lead();
    if (this.closed || this.frozen) {
      this.cfg.unlead();
      return;
    }
    this.leader = leader;
    this.tellAll("");
    for (const [id, command] of this.pending) this.perform(id, command);
    await released;
  }

  private tellAll(to: string) {
    const { snapshot, status } = this.leader!.all();
    this.say({ note: "all", leader: this.tab, to, batch: packBatch(asBatch(snapshot)), status });
  }

  private perform(id: number, command: Command) {
    if (this.leader) this.leader.execute(command, () => this.pending.delete(id));
    else if (this.following) this.say({ note: "do", tab: this.tab, id, command });
  }

  private note(n: Note) {
    switch (n.note) {
      case "who":
        if (this.leader) this.tellAll(n.tab);
        return;
      case "do":
        this.leader?.execute(n.command, () => this.say({ note: "done", tab: n.tab, id: n.id }));
        return;
      case "done":
        if (n.tab === this.tab) this.pending.delete(n.id);
        return;
      case "all":
        this.heard = elapsed();
        if (this.leader || (n.to !== "" && n.to !== this.tab)) return;
        this.following = n.leader;
        this.cfg.onAll(snapshotOf(n.batch), n.status);
        for (const [id, command] of this.pending) this.perform(id, command);
        return;
      case "news":
        this.heard = elapsed();
        if (!this.leader && n.leader === this.following) this.cfg.onNews(n.batch, n.status, n.failed);
        return;
      case "profiles":
        if (!this.leader && n.leader === this.following) this.cfg.onProfiles(n.changed);
        return;
    }
  }

  /**
   * A leader that does not answer hangs, or was frozen without a word: a tab that somebody looks at takes its place.
   * What the other one would still write, its storage refuses.
   */
  private watch() {
    if (this.leader || this.frozen || document.visibilityState !== "visible") {
      this.asked = 0;
      return;
    }
    const now = elapsed();
    if (now - this.heard < impatience) {
      this.asked = 0;
    } else if (this.asked === 0) {
      this.asked = now;
      this.say({ note: "who", tab: this.tab });
    } else if (now - this.asked >= impatience) {
      this.asked = 0;
      this.heard = now;
      this.queue(true);
    }
  }
}

function snapshotOf(batch: PackedBatch): Snapshot {
  const s = emptySnapshot();
  storeInto(s, unpackBatch(batch));
  return s;
}
