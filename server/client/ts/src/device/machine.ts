// The rules of a client: a Machine keeps one device's copy of a user's chats equal to the store, whatever happens to its
// connections. It decides which frame is applied and which only shows that there is something newer, what is requested,
// when a token is stored, what the end of a stream means, when a message is sent again. It has no connection, no disk, no
// timer and no clock of its own, so that it can be stepped through every order of events; the scenarios of
// server/client/conformance do so.
//
// chat.ts is a chat as it stands in the list, change.ts applies what changed, content.ts has the messages and members of a
// chat that is open, stream.ts frames and ends of the stream, results.ts answers, plan.ts decides which calls are made,
// outbox.ts sends and tells what was read.
import { Code } from "@connectrpc/connect";
import type { ChatOverview, MemberState } from "#gen/parley/chat/v1/chat_pb.js";
import type { SubscribeResponse } from "#gen/parley/delivery/v1/delivery_service_pb.js";
import { Chat, emptyRecord, overview, withCount } from "./chat.js";
import { trim } from "./content.js";
import { historyOf, learned } from "./history.js";
import type { Mark, Sending } from "./outbox.js";
import { deadline, plan } from "./plan.js";
import { result } from "./results.js";
import { hurryPoll, noPolling, retry } from "./poll.js";
import { closeStream, frames, noStream, streamEnded } from "./stream.js";
import { isEmpty } from "./types.js";
import type {
  Batch,
  Call,
  Event,
  Failure,
  Kind,
  MachineConfig,
  OutboxEntry,
  Requests,
  Response,
  Session,
  Snapshot,
} from "./types.js";

export const maxKnown = 100; // chats named in one request
const firstBackoff = 500;
export const lastBackoff = 30_000;
const heartbeatGrace = 1000;

/** Nothing of a synchronisation by pages. */
const noSync = () => ({
  need: false,
  call: 0, // under way, 0 for none
  token: "", // since which the pages show what changed; empty if they list all chats
  page: "",
  news: false, // a page had a version that was not known
  began: 0, // step of the first page's request
  tries: 0,
  at: 0,
});

/** A call under way. */
export interface PendingCall {
  kind: Kind;
  asked: string; // the history that the call said
  chat?: Chat;
  newest: bigint; // of the chat, when the call was made
  after: bigint; // listChanges
  older: boolean; // listMessages of an older page
  entry?: OutboxEntry;
  marks: Mark[]; // ack and markRead
}

/** One device of one user. */
export class Machine {
  readonly cfg: Required<MachineConfig>;
  session: Session = { token: "", generation: "" };
  readonly chats = new Map<string, Chat>();
  /** Answers about a chat that are older than this come from before it was left. */
  readonly left = new Map<string, bigint>();
  /** Of chats in left: the newest that a receipt brought. */
  readonly early = new Map<string, MemberState>();
  outbox: OutboxEntry[] = []; // oldest first
  /** By the machine's clock. A stored time in the future is of a clock that was ahead, and counts as now. */
  readonly queuedAt = new WeakMap<OutboxEntry, number>();
  readonly sending = new Map<string, Sending>();
  stream = noStream(0);
  sync = noSync();
  poll = noPolling();
  readonly calls = new Map<number, PendingCall>();
  lastCall = 0;
  step = 0; // number of the input being handled
  reads = 0; // chats' reads under way

  refreshing = 0; // call, 0 for none
  needRefresh = false;
  refreshTries = 0;
  refreshAt = 0;
  stopped = false;

  pendingChats: Chat[] = []; // may need a call
  dirty: Chat[] = []; // changed since the last take
  removedChats: string[] = [];
  newEntries: OutboxEntry[] = [];
  done: string[] = [];
  sessionDirty = false;
  unnamed = false; // there is something from before the first generation
  moved = false; // the session has another commit, which matters once something else is stored
  out: Call[] = [];
  events: Event[] = [];

  constructor(cfg: MachineConfig, snapshot?: Snapshot) {
    this.cfg = { pageSize: 0, subscribeFirst: false, silence: 50_000, extendBefore: 60_000, wall: cfg.clock, ...cfg };
    if (snapshot) {
      this.session = { ...snapshot.session };
      for (const id of [...snapshot.chats.keys()].sort()) {
        const c = new Chat(this, { ...snapshot.chats.get(id)! });
        c.messages = [...(snapshot.messages.get(id) ?? [])];
        this.chats.set(id, c);
        c.wake();
      }
      this.outbox = snapshot.outbox.map((u) => ({ ...u }));
      for (const u of this.outbox) this.queuedAt.set(u, cfg.clock() - Math.max(this.cfg.wall() - u.createdAt, 0));
    }
    this.unnamed = this.session.generation === "" && this.chats.size > 0;
    this.sync.need = this.session.token === "" && !this.cfg.subscribeFirst;
  }

  /** Has a chat's messages loaded and kept up to date. */
  open(chatId: string) {
    this.step++;
    const c = this.ask(chatId);
    if (!c.record.open) {
      c.record.open = true;
      c.changed();
    }
  }

  /** Drops a chat's messages; it stays in the list. */
  evict(chatId: string) {
    this.step++;
    const c = this.chats.get(chatId);
    if (c) {
      c.record.open = false;
      c.restart();
    }
  }

  /** Has the page of messages before those at hand loaded. */
  loadOlder(chatId: string) {
    this.step++;
    const c = this.chats.get(chatId);
    if (c?.record.loaded && c.record.hasOlder) {
      c.wantOlder = true;
      c.wake();
    }
  }

  /** Drops all but the last messages of a chat, at least one, unless some are being read. loadOlder reads them again. */
  trim(chatId: string, keep: number) {
    this.step++;
    const c = this.chats.get(chatId);
    if (c) trim(c, Math.max(keep, 1));
  }

  /**
   * Adds a chat that the app got from the server, for example by creating it. said is the header Parley-History of the
   * answer; it is empty from a server of an earlier release.
   */
  learn(ov: ChatOverview, said = "") {
    this.step++;
    if (learned(this, said)) overview(this, ov, false);
    else this.ask(ov.chat!.chatId);
  }

  /** Has a chat that the device does not know read from the server. */
  private ask(chatId: string) {
    const c = this.chats.get(chatId) ?? this.add(chatId);
    c.wake();
    return c;
  }

  /** Says that the user has read a chat up to a sequence. */
  markRead(chatId: string, sequence: bigint) {
    this.step++;
    const c = this.chats.get(chatId);
    if (c && sequence > (c.record.state?.readSequence ?? 0n) && sequence > c.record.readTo) {
      c.record.readTo = sequence;
      c.changed();
    }
  }

  /** Queues a message under an id, a UUID. One that is on its way already is not queued again. */
  send(chatId: string, content: string, clientMessageId: string) {
    this.step++;
    if (this.outbox.some((u) => u.clientMessageId === clientMessageId)) return;
    const u = { clientMessageId, chatId, content, createdAt: this.cfg.wall() };
    this.queuedAt.set(u, this.cfg.clock());
    this.outbox.push(u);
    this.newEntries.push(u);
  }

  /** Starts a stopped device again, with a new bearer token. */
  resume() {
    this.step++;
    this.stopped = false;
    this.needRefresh = true;
    const now = this.cfg.clock();
    retry(this, now, 0);
    this.stream.connectAt = now;
    this.poll.up = false;
    hurryPoll(this);
  }

  /** Ends all waits and opens another stream, because the network changed: the connection of this one may be dead. */
  hurry() {
    this.step++;
    this.reopen();
    hurryPoll(this);
    this.sync.at = this.sync.tries = this.refreshAt = this.refreshTries = 0;
    for (const f of this.sending.values()) f.at = f.tries = 0;
    for (const c of this.chats.values()) c.retryAt = c.tries = 0;
  }

  /** Opens another stream if a heartbeat of this one is late, before the silence is long enough. */
  check() {
    this.step++;
    const { id, heard, heartbeat } = this.stream;
    if (id !== 0 && this.cfg.clock() - heard > heartbeat + heartbeatGrace) this.reopen();
  }

  private reopen() {
    if (this.stream.id !== 0) closeStream(this, this.cfg.clock());
    this.stream.connectAt = this.stream.tries = 0;
  }

  /** Applies what came on the stream that a subscribe call opened. */
  frames(call: number, res: SubscribeResponse) {
    this.step++;
    frames(this, call, res);
  }

  /** Handles the end of a stream, after its last frames; without a failure it ended without an error. */
  streamEnded(call: number, why?: Failure) {
    this.step++;
    streamEnded(this, call, why);
  }

  /**
   * Handles the end of a call: with a response, or with a failure. history is what the answer says of the store's
   * history; empty if it says nothing.
   */
  result(call: number, res?: Response, why?: Failure, history = "") {
    this.step++;
    result(this, call, res, why, history);
  }

  /** Returns what there is to store and then, once it is stored, to call; and what happened. */
  take(): { batch: Batch; calls: Call[]; events: Event[] } {
    this.step++;
    plan(this);
    const batch: Batch = { removed: [], chats: [], outbox: this.newEntries, done: this.done };
    for (const id of this.removedChats) if (!this.chats.has(id)) batch.removed.push(id);
    for (const c of this.dirty) {
      if (this.chats.get(c.id) === c) {
        batch.chats.push({ record: { ...c.record }, clear: c.clear, messages: c.changedMessages });
      }
      c.dirty = c.clear = false;
      c.changedMessages = [];
    }
    if (this.sessionDirty || (this.moved && !isEmpty(batch))) {
      batch.session = { ...this.session };
      this.moved = false;
    }
    const { out: calls, events } = this;
    this.removedChats = [];
    this.dirty = [];
    this.newEntries = [];
    this.done = [];
    this.sessionDirty = false;
    this.out = [];
    this.events = [];
    return { batch, calls, events };
  }

  /** How the device is connected, if it is not stopped: by its stream, or by polls. */
  get connection(): "connecting" | "live" | "polling" {
    if (this.stream.complete) return "live";
    return this.poll.up ? "polling" : "connecting";
  }

  /** When `take` may have something new without any other input, by the machine's clock; undefined if never. */
  deadline(): number | undefined {
    return deadline(this);
  }

  // What follows is for the other files of the machine.

  add(chatId: string): Chat {
    const c = new Chat(this, emptyRecord(chatId));
    c.record.state = this.early.get(chatId);
    c.seen = this.step;
    c.clear = true;
    this.early.delete(chatId);
    this.chats.set(chatId, c);
    c.changed();
    return c;
  }

  sorted(): Chat[] {
    return [...this.chats.keys()].sort().map((id) => this.chats.get(id)!);
  }

  call(kind: "refresh"): number;
  call<K extends keyof Requests>(kind: K, request: Requests[K], more?: Partial<PendingCall>): number;
  call(kind: Kind, request?: unknown, more: Partial<PendingCall> = {}): number {
    const id = ++this.lastCall;
    const newest = more.chat?.record.newest ?? 0n;
    const asked = kind === "refresh" ? "" : historyOf(this.session);
    this.calls.set(id, { after: 0n, older: false, marks: [], ...more, kind, newest, asked });
    this.out.push((request ? { id, kind, request, history: asked } : { id, kind }) as Call);
    return id;
  }

  /** A wait after a number of failures in a row, with full jitter. */
  backoff(tries: number): number {
    return this.cfg.random() * Math.min(firstBackoff * 2 ** Math.min(tries, 16), lastBackoff);
  }

  setToken(token: string) {
    if (this.session.token !== token) {
      this.session.token = token;
      this.sessionDirty = true;
    }
  }

  /** Drops the token: all chats are listed again. */
  resync() {
    this.setToken("");
    this.sync = { ...noSync(), need: true, tries: this.sync.tries, at: this.sync.at };
  }

  /** Drops all that belongs to versions of chats, because they are of another generation or were called invalid. */
  dropVersions() {
    this.left.clear();
    this.early.clear();
    this.sending.clear();
    this.sync.call = 0;
    this.sync.page = "";
    for (const c of this.sorted()) {
      c.restart();
      const r = c.record;
      r.newest = r.knownAt = 0n;
      r.head = undefined;
      r.state = undefined; // marks only go up, but not from one store to another
      if (r.chat) r.chat = withCount(r.chat, r.chat.memberCount, r.chat.updatedAt, 0n);
      c.chatCall = c.readCall = 0;
      c.changed();
    }
  }

  /** Does nothing more until resume. */
  stop(why: Failure) {
    this.stopped = true;
    if (this.stream.id !== 0) closeStream(this, this.cfg.clock());
    this.events.push({ stopped: why });
  }

  /** Does what a failure of any call requires beyond a retry. */
  failed(why: Failure) {
    if (why.reason === "SESSION_REVOKED") this.stop(why);
    else if (why.code === Code.Unauthenticated) this.needRefresh = true;
  }
}
