// Where a device keeps what it must remember: in memory, or in the browser's database.
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { type Profile, ProfileSchema } from "#gen/parley/user/v1/user_pb.js";
import { type PackedRecord, packBatch, unpackMessage, unpackRecord } from "./device/pack.js";
import { emptySnapshot, storeInto } from "./device/snapshot.js";
import type { Batch, LeftChat, OutboxEntry, RefusedMessage, Session, Snapshot, Storage } from "./device/types.js";
import type { ProfileStorage } from "./profiles.js";

/** Lasts as long as the process. */
export class MemoryStorage implements Storage {
  private snapshot = emptySnapshot();

  async load(): Promise<Snapshot> {
    const { session, chats, messages, outbox, remnants } = this.snapshot;
    return { session, chats: new Map(chats), messages: new Map(messages), outbox: [...outbox], remnants };
  }

  async store(batch: Batch): Promise<void> {
    storeInto(this.snapshot, batch);
  }

  async clear(keepUnsent: boolean): Promise<void> {
    const { outbox, remnants } = this.snapshot;
    this.snapshot = keepUnsent ? { ...emptySnapshot(), outbox, remnants } : emptySnapshot();
  }
}

/** Another tab loaded the storage since: what this one would store may be old. */
export class TakenOverError extends Error {
  constructor() {
    super("parley: another tab has taken over the storage");
  }
}

const stores = ["meta", "chats", "messages", "outbox"] as const;

/**
 * Lasts as long as the browser keeps it. Whoever loads it last owns it: what others store is refused, so that a tab that
 * was frozen does no harm.
 */
export class IndexedDBStorage implements Storage, ProfileStorage {
  private db: Promise<IDBDatabase> | undefined;
  private owner = 0;
  private order = 0;
  private era: number | undefined; // how often it had been cleared when the profiles were loaded

  /** @param name of the database; each user has one of their own */
  constructor(private readonly name: string) {}

  async load(): Promise<Snapshot> {
    const tx = (await this.open()).transaction(stores, "readwrite");
    const out = emptySnapshot();
    const meta = tx.objectStore("meta");
    const [owner, session, chats, messages, outbox, refused, left] = await Promise.all([
      request<number | undefined>(meta.get("owner")),
      request<Session | undefined>(meta.get("session")),
      request<PackedRecord[]>(tx.objectStore("chats").getAll()),
      request<{ chatId: string; bytes: Uint8Array }[]>(tx.objectStore("messages").getAll()), // in order of their keys
      request<(OutboxEntry & { order: number })[]>(tx.objectStore("outbox").getAll()),
      request<(RefusedMessage & { order: number })[]>(meta.getAll(keysUnder(refusedKey))),
      request<LeftChat[]>(meta.getAll(keysUnder(leftKey))),
    ]);
    this.owner = (owner ?? 0) + 1;
    meta.put(this.owner, "owner");
    await committed(tx);
    if (session) out.session = session;
    for (const r of chats) out.chats.set(r.chatId, unpackRecord(r));
    for (const { chatId, bytes } of messages) {
      const list = out.messages.get(chatId);
      if (list) list.push(unpackMessage(bytes));
      else out.messages.set(chatId, [unpackMessage(bytes)]);
    }
    this.order = Math.max(0, ...outbox.map((u) => u.order), ...refused.map((r) => r.order));
    out.outbox = inOrder(outbox);
    out.remnants = { refused: inOrder(refused), left };
    return out;
  }

  async store(batch: Batch): Promise<void> {
    const packed = packBatch(batch);
    const tx = (await this.open()).transaction(stores, "readwrite");
    const [meta, chats, messages, outbox] = stores.map((s) => tx.objectStore(s)) as [
      IDBObjectStore,
      IDBObjectStore,
      IDBObjectStore,
      IDBObjectStore,
    ];
    const done = committed(tx);
    done.catch(() => {}); // awaited below
    if ((await request(meta.get("owner"))) !== this.owner) {
      tx.abort();
      throw new TakenOverError();
    }
    for (const id of packed.removed) {
      chats.delete(id);
      messages.delete(ofChat(id));
    }
    for (const { record, clear, messages: list } of packed.chats) {
      const { chatId } = record;
      chats.put(record);
      if (clear) messages.delete(ofChat(chatId));
      for (const { sequence, bytes } of list) messages.put({ chatId, sequence, bytes });
    }
    for (const entry of packed.outbox) outbox.put({ ...entry, order: ++this.order });
    for (const id of packed.done) outbox.delete(id);
    if (packed.session) meta.put(packed.session, "session");
    for (const id of packed.remnants?.dropped ?? []) for (const key of [refusedKey, leftKey]) meta.delete(key + id);
    for (const r of packed.remnants?.refused ?? []) {
      meta.put({ ...r, order: ++this.order }, refusedKey + r.entry.clientMessageId);
    }
    for (const l of packed.remnants?.left ?? []) meta.put(l, leftKey + l.chatId);
    await done;
  }

  /** In no order. All tabs read and write profiles: whoever owns the rest. */
  async loadProfiles(): Promise<Profile[]> {
    const meta = (await this.open()).transaction("meta", "readonly").objectStore("meta");
    const [era, all] = await Promise.all([
      request<number | undefined>(meta.get("era")),
      request<Uint8Array[]>(meta.getAll(keysUnder(profileKey))),
    ]);
    this.era = era;
    return all.map((bytes) => fromBinary(ProfileSchema, bytes));
  }

  /** Does nothing if the storage was cleared since the profiles were loaded. */
  async storeProfiles(profiles: Profile[], removed: string[]): Promise<void> {
    const tx = (await this.open()).transaction("meta", "readwrite");
    const meta = tx.objectStore("meta");
    const done = committed(tx);
    done.catch(() => {}); // awaited below
    if ((await request<number | undefined>(meta.get("era"))) === this.era) {
      for (const p of profiles) meta.put(toBinary(ProfileSchema, p), profileKey + p.userId);
      for (const id of removed) meta.delete(profileKey + id);
    }
    await done;
  }

  /** Forgets everything, or all but the outbox and the remnants. Whoever owns it must load it again. */
  async clear(keepUnsent: boolean): Promise<void> {
    const tx = (await this.open()).transaction(stores, "readwrite");
    const done = committed(tx);
    done.catch(() => {}); // awaited below
    const meta = tx.objectStore("meta");
    const [owner, era] = await Promise.all([
      request<number | undefined>(meta.get("owner")),
      request<number | undefined>(meta.get("era")),
    ]);
    for (const s of stores) if (s === "chats" || s === "messages" || !keepUnsent) tx.objectStore(s).clear();
    meta.delete("session");
    meta.delete(keysUnder(profileKey));
    meta.put((owner ?? 0) + 1, "owner");
    meta.put((era ?? 0) + 1, "era");
    await done;
  }

  /** Closes the database. */
  async close(): Promise<void> {
    const db = this.db;
    this.db = undefined;
    (await db)?.close();
  }

  private open(): Promise<IDBDatabase> {
    return (this.db ??= new Promise((resolve, reject) => {
      const r = indexedDB.open(this.name, 1);
      r.onupgradeneeded = () => {
        r.result.createObjectStore("meta");
        r.result.createObjectStore("chats", { keyPath: "chatId" });
        r.result.createObjectStore("messages", { keyPath: ["chatId", "sequence"] });
        r.result.createObjectStore("outbox", { keyPath: "clientMessageId" });
      };
      r.onsuccess = () => resolve(r.result);
      r.onerror = () => reject(r.error);
    }));
  }
}

const profileKey = "profile/";
const refusedKey = "refused/";
const leftKey = "left/";
const keysUnder = (prefix: string) => IDBKeyRange.bound(prefix, `${prefix}\uffff`);
const ofChat = (id: string) => IDBKeyRange.bound([id], [id, []]); // lists sort after numbers

const inOrder = <T extends { order: number }>(list: T[]): Omit<T, "order">[] =>
  list.sort((a, b) => a.order - b.order).map(({ order: _, ...rest }) => rest);

function request<T>(r: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    r.onsuccess = () => resolve(r.result);
    r.onerror = () => reject(r.error);
  });
}

function committed(tx: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    tx.oncomplete = () => resolve();
    tx.onabort = tx.onerror = () => reject(tx.error ?? new Error("parley: the transaction was aborted"));
  });
}
