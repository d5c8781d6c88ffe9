// The client of an app: one device of one user, shared by the tabs of a browser.
import { fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import type { Client as Service, Transport } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { ChatOverviewSchema, ChatType } from "#gen/parley/chat/v1/chat_pb.js";
import type { ChatService, CreateChatRequestSchema } from "#gen/parley/chat/v1/chat_service_pb.js";
import type { AuthService } from "#gen/parley/auth/v1/auth_service_pb.js";
import type { MessageService } from "#gen/parley/message/v1/message_service_pb.js";
import type { UserService } from "#gen/parley/user/v1/user_service_pb.js";
import { type Calls, callsOver, historyIn, Tokens, type TokenSource } from "./calls.js";
import { packBatch, unpackBatch } from "./device/pack.js";
import {
  type Batch,
  emptyBatch,
  type Event,
  type LeftChat,
  type OutboxEntry,
  type RefusedMessage,
  type Storage,
} from "./device/types.js";
import type { ChatView } from "./device/view.js";
import { Profiles } from "./profiles.js";
import { refusedIn, RemnantKeeper } from "./remnants.js";
import { callEach, report } from "./report.js";
import { Runner, type Status } from "./runner.js";
import { canShare, type Command, type Leader, Share } from "./share.js";
import { State } from "./state.js";
import { IndexedDBStorage, MemoryStorage, TakenOverError } from "./storage.js";
import { uuid } from "./uuid.js";

export interface ClientOptions {
  /** Of the server, for example https://chat.example. Without it the origin of the page. */
  baseUrl?: string;
  userId: string;
  token: string | TokenSource;
  /** By default IndexedDB in a browser, memory elsewhere. */
  storage?: Storage;
  /** Share one stream and one storage among the tabs of a browser. Needs IndexedDB. By default as the browser can. */
  share?: boolean;
  /** Instead of Connect over fetch to baseUrl; gets the interceptor that adds the token. */
  transport?: (tokens: Tokens) => Transport;
  /** A message was refused or is too old, and is not sent any more; reason is that of the server's error. In each tab. */
  onSendFailed?: (entry: OutboxEntry, reason: string) => void;
  /** Messages loaded at a time; the server's default without it. */
  pageSize?: number;
}

export class Client {
  readonly userId: string;
  /** The services of the API, with the bearer token. `create` creates a chat that is one of chats at once. */
  readonly api: {
    chats: Service<typeof ChatService>;
    messages: Service<typeof MessageService>;
    users: Service<typeof UserService>;
    auth: Service<typeof AuthService>;
  };
  /** What people show of themselves. */
  readonly profiles: Profiles;
  private readonly state: State;
  private readonly remnants: RemnantKeeper;
  private readonly calls: Calls;
  private readonly storage: Storage;
  private readonly shared: boolean;
  private readonly name: string; // of lock, channel and database
  private share: Share | undefined;
  private runner: Runner | undefined;
  private readonly pending = new Set<Command>(); // not stored yet, of a client that shares nothing
  private started = false;
  private loading = false;
  private readonly end = new AbortController(); // of close
  private unlisten: () => void = () => {};

  constructor(private readonly options: ClientOptions) {
    const { token, userId } = options;
    this.userId = userId;
    this.state = new State();
    this.remnants = new RemnantKeeper(userId, this.state);
    const tokens = new Tokens(typeof token === "string" ? () => token : token);
    const baseUrl = options.baseUrl ?? globalThis.location?.origin;
    const transport = options.transport
      ? options.transport(tokens)
      : createConnectTransport({ baseUrl, useBinaryFormat: true, interceptors: [tokens.interceptor] });
    this.calls = callsOver(transport, tokens);
    const { chats, messages, users, auth } = this.calls;
    this.api = { chats, messages, users, auth };
    const lasting = typeof indexedDB !== "undefined";
    this.name = `parley/1/${baseUrl}/${userId}`;
    this.storage = options.storage ?? (lasting ? new IndexedDBStorage(this.name) : new MemoryStorage());
    this.profiles = new Profiles(
      async (known) => (await users.batchGetProfiles({ knownProfiles: known }, { timeoutMs: 30_000 })).profiles,
      this.storage instanceof IndexedDBStorage ? this.storage : undefined,
    );
    this.shared = (options.share ?? true) && canShare() && this.storage instanceof IndexedDBStorage;
  }

  /** Connects, and keeps the chats up to date until close. */
  start(): this {
    if (this.started) return this;
    this.started = true;
    this.profiles.start();
    this.subscribe(() => this.profiles.connected(this.status.connection === "live", this.status.polling));
    if (this.shared) {
      this.share = new Share({
        name: this.name,
        lead: () =>
          this.lead().catch((error: unknown) => {
            this.failed(error);
            throw error;
          }),
        unlead: () => this.unlead(),
        onAll: (snapshot, status) => this.state.replace(snapshot, status),
        onNews: (batch, status, failed) => {
          this.state.apply(unpackBatch(batch), status);
          this.tell(failed);
        },
        onProfiles: (changed) => this.profiles.changed(changed),
      });
    } else {
      this.begin();
    }
    this.listen();
    return this;
  }

  private begin() {
    this.loading = true;
    this.lead().then(
      () => (this.loading = false),
      (error: unknown) => {
        this.loading = false;
        this.failed(error);
      },
    );
  }

  /** Ends the connection. What was not sent goes out after the next start of a client with this storage. */
  async close(): Promise<void> {
    this.end.abort();
    this.unlisten();
    this.profiles.close();
    this.share?.close();
    this.unlead();
    if (this.storage instanceof IndexedDBStorage) await this.storage.close();
  }

  /**
   * Ends the connection and forgets what the storage has, in all tabs; with keepUnsent all but the messages that were not
   * sent. Those of the outbox go out once the user has signed in again, and refused ones stay until they are dismissed.
   */
  async forget({ keepUnsent = false } = {}): Promise<void> {
    await this.close();
    await this.storage.clear(keepUnsent);
    if (this.storage instanceof IndexedDBStorage) await this.storage.close();
  }

  private get closed() {
    return this.end.signal.aborted;
  }

  /** How many messages the server has not confirmed. */
  get unsent(): number {
    return this.state.outbox().length;
  }

  /** The messages that the server has not confirmed, oldest first, also of chats that are not known. */
  outbox(): readonly OutboxEntry[] {
    return this.state.outbox();
  }

  /**
   * The messages that are not sent any more, oldest first; the same list until it changes. They stay over restarts, the
   * last 200 of them, until they are dismissed or sent again.
   */
  refused(): readonly RefusedMessage[] {
    return this.state.refused();
  }

  /** The last 100 chats that the user has left or was removed from, as far as this device knew them. */
  leftChats(): readonly LeftChat[] {
    return this.state.left();
  }

  /** Drops a refused message. */
  dismiss(clientMessageId: string) {
    this.execute({ do: "dismiss", id: clientMessageId });
  }

  /** Whether this tab has the stream, so that `status` is about its own token. */
  get leads(): boolean {
    return this.share?.leads ?? true;
  }

  /** How the connection is. */
  get status(): Status {
    return this.state.status;
  }

  /** The user's chats, last changed first; the same list until something changes. */
  chats(): readonly ChatView[] {
    return this.state.chats();
  }

  /** One chat, the same object until it changes; undefined if it is not one of the user's, as far as known. */
  chat(chatId: string): ChatView | undefined {
    return this.state.chat(chatId);
  }

  /** Calls back after each change of chats and status, until the function it returns is called. */
  subscribe(listener: () => void): () => void {
    return this.state.subscribe(listener);
  }

  /** Has a chat's messages and members loaded and kept up to date. */
  open(chatId: string) {
    this.execute({ do: "open", chatId });
  }

  /** Drops a chat's messages; it stays in the list. */
  evict(chatId: string) {
    this.execute({ do: "evict", chatId });
  }

  /** Has the page of messages before those at hand loaded. */
  loadOlder(chatId: string) {
    this.execute({ do: "loadOlder", chatId });
  }

  /**
   * Drops all but the last messages of a chat, in all tabs, so that memory and storage do not grow with a history that
   * was read once. loadOlder brings the others again. Does nothing while messages are being loaded.
   */
  trim(chatId: string, keep: number) {
    this.execute({ do: "trim", chatId, keep });
  }

  /** Says that the user has read a chat up to a sequence, or to its last message. */
  markRead(chatId: string, sequence = this.chat(chatId)?.head?.sequence ?? 0n) {
    this.execute({ do: "markRead", chatId, sequence });
  }

  /**
   * Queues a message, which is stored and then sent until the server confirms or refuses it. Returns its id.
   *
   * Throws an Error if the message would be lost: after close or forget, and while the client is stopped with STORAGE,
   * TAKEN_OVER or INTERNAL. After every other stop the message is stored, and is sent after resume.
   *
   * With instead, the id of a refused message, it dismisses that one in the same step.
   */
  send(chatId: string, content: string, { instead = "" } = {}): string {
    const { connection, why = "" } = this.status;
    if (this.closed) throw new Error("parley: the client is closed: the message is not kept");
    if (connection === "stopped" && ended.has(why)) {
      throw new Error(`parley: the client is stopped (${why}): the message is not kept`);
    }
    const id = uuid();
    this.execute({ do: "send", chatId, content, id, instead });
    return id;
  }

  /** Creates a chat, opens it, and returns its id once it is one of chats. The client must have been started. */
  async create(request: Omit<MessageInitShape<typeof CreateChatRequestSchema>, "$typeName">): Promise<string> {
    let history = "";
    const onHeader = (h: Headers) => void (history = historyIn(h));
    const { overview } = await this.api.chats.createChat({ requestId: uuid(), ...request }, { onHeader });
    this.execute({ do: "learn", overview: toBinary(ChatOverviewSchema, overview!), history });
    const { chatId } = overview!.chat!;
    this.open(chatId);
    await new Promise<void>((known, failed) => {
      const look = () => {
        if (!this.closed && !this.chat(chatId)?.chat) return;
        stop();
        this.end.signal.removeEventListener("abort", look);
        if (this.closed) failed(new Error("parley: the client is closed: the chat was created"));
        else known();
      };
      const stop = this.subscribe(look);
      this.end.signal.addEventListener("abort", look);
      look();
    });
    return chatId;
  }

  /** Creates a group. */
  createGroup(name: string, memberIds: string[]): Promise<string> {
    return this.create({ type: ChatType.GROUP, name, memberIds });
  }

  /** The chat with one other user, a new one if there is none. */
  createDirect(userId: string): Promise<string> {
    return this.create({ type: ChatType.DIRECT, memberIds: [userId] });
  }

  /**
   * Resumes after the client was stopped, with a new bearer token. After STORAGE, TAKEN_OVER and INTERNAL it loads the
   * storage, and repeats the requests that were not stored.
   */
  resume() {
    if (this.share) {
      this.execute({ do: "resume" });
      this.share.again();
    } else if (this.runner) {
      this.execute({ do: "resume" });
    } else if (this.started && !this.loading && !this.closed) {
      this.state.apply(emptyBatch(), { connection: "connecting" });
      this.begin();
    }
  }

  private execute(command: Command) {
    if (this.closed) return;
    if (this.share) {
      this.share.execute(command);
      return;
    }
    this.pending.add(command);
    this.perform(command);
  }

  private perform(command: Command) {
    if (this.runner) perform(this.runner, this.remnants, command, () => this.pending.delete(command));
  }

  private async lead(): Promise<Leader> {
    const snapshot = await this.storage.load();
    if (this.closed) throw new Error("parley: the client was closed");
    this.state.replace(
      { ...snapshot, chats: new Map(snapshot.chats), messages: new Map(snapshot.messages) },
      { connection: "connecting" },
    );
    const { pageSize = 0 } = this.options;
    const runner = new Runner(
      {
        machine: { userId: this.userId, pageSize, extendBefore: 120_000 }, // timers of a tab in the background are late
        calls: this.calls,
        storage: this.storage,
        onFrames: (frames) => this.remnants.note(frames),
        complete: (batch, events) => this.remnants.complete(batch, events),
        onChange: (batch, events, status) => this.changed(batch, events, status),
        onProfiles: (changed) => {
          this.profiles.changed(changed);
          this.share?.profiles(changed.map(({ userId, version }) => ({ userId, version })));
        },
        onFailure: (error, ofStorage) => this.failed(error, ofStorage),
      },
      snapshot,
    );
    this.runner = runner;
    for (const command of this.pending) this.perform(command);
    void runner.pump();
    return {
      all: () => ({ snapshot: this.state.stored(), status: this.state.status }),
      execute: (command, stored) => perform(runner, this.remnants, command, stored),
    };
  }

  private unlead() {
    this.runner?.close();
    this.runner = undefined;
  }

  private changed(batch: Batch, events: Event[], status: Status) {
    const failed = refusedIn(events);
    this.state.apply(batch, status);
    this.share?.news(packBatch(batch), status, failed);
    this.tell(failed);
  }

  private tell(failed: RefusedMessage[]) {
    callEach(failed.map(({ entry, reason }) => () => this.options.onSendFailed?.(entry, reason)));
  }

  /** The storage failed, or the client has a mistake. Another tab that has taken the storage over continues instead. */
  private failed(error: unknown, ofStorage = true) {
    if (this.closed) return;
    const taken = error instanceof TakenOverError;
    if (!taken || !this.share) {
      const why = taken ? "TAKEN_OVER" : ofStorage ? "STORAGE" : "INTERNAL";
      if (ofStorage) console.error("parley: the storage failed:", error);
      else report(error);
      this.changed(emptyBatch(), [], { connection: "stopped", why });
    }
    if (this.share) this.share.stepDown(!taken);
    else this.unlead();
  }

  /** Another network, and a page that was thawed or is visible again, are reasons not to wait. */
  private listen() {
    if (typeof window === "undefined") return;
    const online = () => this.runner?.hurry(); // each tab is notified
    const visible = () => {
      if (document.visibilityState === "visible" && (this.share || this.runner)) this.execute({ do: "check" });
    };
    const { connection } = navigator as { connection?: EventTarget & { type?: string } };
    let type = connection?.type; // most changes are other estimates of the speed
    const moved = () => {
      if (connection!.type === type) return void this.runner?.do((m) => m.check());
      type = connection!.type;
      if (type !== "none") online();
    };
    window.addEventListener("online", online);
    connection?.addEventListener("change", moved);
    document.addEventListener("visibilitychange", visible);
    const frozen = () => this.share?.freeze();
    const thawed = () => {
      this.share?.thaw();
      visible();
    };
    document.addEventListener("freeze", frozen);
    document.addEventListener("resume", thawed);
    this.unlisten = () => {
      window.removeEventListener("online", online);
      connection?.removeEventListener("change", moved);
      document.removeEventListener("visibilitychange", visible);
      document.removeEventListener("freeze", frozen);
      document.removeEventListener("resume", thawed);
    };
  }
}

/** Stops after which the storage takes no messages until resume. */
const ended = new Set(["STORAGE", "TAKEN_OVER", "INTERNAL"]);

function perform(runner: Runner, remnants: RemnantKeeper, c: Command, stored: () => void) {
  runner.do((m) => {
    switch (c.do) {
      case "open":
      case "evict":
      case "loadOlder":
        return m[c.do](c.chatId);
      case "trim":
        return m.trim(c.chatId, c.keep);
      case "markRead":
        return m.markRead(c.chatId, c.sequence);
      case "send":
        if (c.instead && !remnants.drop(c.instead)) return; // it was sent again in another tab, or dropped
        return m.send(c.chatId, c.content, c.id);
      case "dismiss":
        return void remnants.drop(c.id);
      case "learn":
        return m.learn(fromBinary(ChatOverviewSchema, c.overview), c.history);
      case "resume":
        return m.stopped ? m.resume() : undefined;
      case "check":
        return m.check();
    }
  }, stored);
}
