// Runs a Machine: makes its calls, stores what it has to store, and wakes it when it wants to be.
import { Code } from "@connectrpc/connect";
import type { Frame, ProfileChanged } from "#gen/parley/delivery/v1/frame_pb.js";
import { type Calls, failureOf, historyHeaders, shortTimeout } from "./calls.js";
import { Machine } from "./device/machine.js";
import {
  type Batch,
  type Call,
  type Event,
  type Failure,
  isEmpty,
  type MachineConfig,
  type Snapshot,
  type Storage,
} from "./device/types.js";
import { elapsed } from "./elapsed.js";

export type Connection = "connecting" | "live" | "stopped";

export interface Status {
  connection: Connection;
  /**
   * Live by polls: something between here and the server, usually a proxy, holds streams back. Messages come up
   * to 15 s late, other people's new names with the next stream. One is tried every five minutes.
   */
  polling?: boolean;
  /**
   * Why it stopped: a reason like SESSION_REVOKED or REPLACED, a code like Unauthenticated, STORAGE, TAKEN_OVER, or
   * INTERNAL for a mistake of the client.
   */
  why?: string | undefined;
}

export interface RunnerConfig {
  machine: Omit<MachineConfig, "clock" | "wall" | "random">;
  calls: Calls;
  storage: Storage;
  /** What was stored, what happened then, and how the connection is. */
  onChange: (batch: Batch, events: Event[], status: Status) => void;
  /** Frames that the machine gets next. */
  onFrames: (frames: Frame[]) => void;
  /** Completes a batch before it is stored. */
  complete: (batch: Batch, events: Event[]) => void;
  /** These people have newer profiles. The machine knows none. */
  onProfiles: (changed: ProfileChanged[]) => void;
  /** The storage failed, or the client has a mistake: the runner has ended. */
  onFailure: (error: unknown, ofStorage: boolean) => void;
}

export class Runner {
  readonly machine: Machine;
  status: Status = { connection: "connecting" };
  private readonly streams = new Map<number, AbortController>(); // by subscribe call
  private readonly underway = new Set<AbortController>(); // other calls
  private unproven = false; // nothing has come since the network changed
  private timer: ReturnType<typeof setTimeout> | undefined;
  private busy = false;
  private again = false;
  private closed = false;
  private storing = false;
  private stored: (() => void)[] = []; // to be called once what happened until now is stored

  constructor(
    private readonly cfg: RunnerConfig,
    snapshot: Snapshot,
  ) {
    const wall = () => Date.now();
    this.machine = new Machine({ ...cfg.machine, clock: elapsed, wall, random: Math.random }, snapshot);
  }

  /** Gives the machine something, and calls back when what follows from it is stored. */
  do(f: (m: Machine) => void, stored?: () => void) {
    f(this.machine);
    if (stored) this.stored.push(stored);
    void this.pump();
  }

  /** The network changed: calls under way, whose connection may be dead, are made again. */
  hurry() {
    this.unproven = true;
    for (const call of this.underway) call.abort();
    this.do((m) => m.hurry());
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    for (const s of this.streams.values()) s.abort();
    this.streams.clear();
  }

  /** Has the machine plan now. One at a time: batches are stored in order. */
  async pump(): Promise<void> {
    this.again = true;
    if (this.busy) return;
    this.busy = true;
    try {
      while (this.again && !this.closed) {
        this.again = false;
        await this.turn();
      }
    } catch (error) {
      if (this.closed) return; // nobody waits for it
      this.close();
      this.cfg.onFailure(error, this.storing);
    } finally {
      this.busy = false;
    }
    this.sleep();
  }

  private async turn() {
    const stored = this.stored;
    this.stored = [];
    const { batch, calls, events } = this.machine.take();
    const status = this.statusAfter(events);
    this.cfg.complete(batch, events);
    this.storing = true;
    if (!isEmpty(batch)) await this.cfg.storage.store(batch);
    this.storing = false;
    if (this.closed) return;
    for (const tell of stored) tell();
    const before = this.status;
    this.status = status;
    for (const call of calls) this.make(call);
    if (!isEmpty(batch) || events.length > 0 || before !== this.status) this.cfg.onChange(batch, events, this.status);
  }

  private sleep() {
    clearTimeout(this.timer);
    const at = this.machine.deadline();
    if (at === undefined || this.closed) return;
    const wait = Math.min(Math.max(at - elapsed(), 1), 3_600_000);
    this.timer = setTimeout(() => void this.pump(), wait);
  }

  private make(call: Call) {
    if (call.kind === "closeStream") {
      this.streams.get(call.stream)?.abort();
    } else if (call.kind === "subscribe") {
      void this.subscribe(call);
    } else {
      void this.unary(call);
    }
  }

  private async unary(call: Exclude<Call, { kind: "subscribe" | "closeStream" }>) {
    const stop = new AbortController();
    this.underway.add(stop);
    const first = this.unproven;
    const answer = this.cfg.calls.make(call, stop.signal, first ? shortTimeout : undefined).then(
      ({ response, history }) => ({ response, why: undefined, history }),
      (error: unknown) => ({ response: undefined, why: failureOf(error), history: "" }),
    );
    const { response, why, history } = await answer;
    this.underway.delete(stop);
    if (first && !stop.signal.aborted) this.unproven = false;
    this.do((m) => m.result(call.id, response, why, history));
  }

  private async subscribe(call: Extract<Call, { kind: "subscribe" }>) {
    const stop = new AbortController();
    this.streams.set(call.id, stop);
    let why: Failure | undefined;
    try {
      for await (const res of this.cfg.calls.delivery.subscribe(call.request, { signal: stop.signal, headers: historyHeaders(call.history) })) {
        if (this.closed) return;
        if (!stop.signal.aborted) this.unproven = false;
        this.cfg.onFrames(res.frames);
        this.do((m) => m.frames(call.id, res));
        const changed = res.frames.flatMap(({ body: b }) => (b.case === "profileChanged" ? [b.value] : []));
        if (changed.length > 0) this.cfg.onProfiles(changed);
      }
    } catch (error) {
      why = failureOf(error);
    } finally {
      this.streams.delete(call.id);
    }
    if (this.closed) return;
    this.do((m) => m.streamEnded(call.id, why));
  }

  /** The status after events; the same object if it is the same. */
  private statusAfter(events: Event[]): Status {
    const stopped = events.find((e) => e.stopped)?.stopped;
    if (stopped) return { connection: "stopped", why: stopped.reason || Code[stopped.code] };
    const old = this.status;
    if (this.machine.stopped) return old;
    const { connection } = this.machine;
    const polling = connection === "polling";
    const next: Status = { connection: polling ? "live" : connection, ...(polling && { polling }) };
    return next.connection === old.connection && !next.polling === !old.polling ? old : next;
  }
}
