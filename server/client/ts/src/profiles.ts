// Profiles of the people that an app shows: fetched when they are asked for, kept by version, and as many as one needs.
import { Code, ConnectError } from "@connectrpc/connect";
import type { Profile } from "#gen/parley/user/v1/user_pb.js";
import { elapsed } from "./elapsed.js";
import { callEach } from "./report.js";

/** Where profiles outlast a page. */
export interface ProfileStorage {
  loadProfiles(): Promise<Profile[]>;
  storeProfiles(profiles: Profile[], removed: string[]): Promise<void>;
}

/** Asks for profiles of people, without those of which the version is known. */
export type FetchProfiles = (known: { userId: string; version?: bigint }[]) => Promise<Profile[]>;

interface Entry {
  profile?: Profile | undefined;
  /** The server was asked since the stream was opened. */
  current: boolean;
  /** A version that exists, as a frame has said. */
  newest: bigint;
  /** By elapsed. */
  usedAt: number;
}

const most = 2000; // profiles
const inUse = 60_000; // of those nobody asked for so long, one makes room
const atOnce = 100; // profiles in a request
const gather = 20; // milliseconds in which requests become one
const firstBackoff = 1000;
const lastBackoff = 30_000;

export class Profiles {
  /** Grows with each change. */
  revision = 0;
  private readonly entries = new Map<string, Entry>(); // the one used longest ago first
  private readonly wanted = new Set<string>();
  private readonly listeners = new Set<() => void>();
  private live = false;
  private polling = false;
  private asking: ReadonlySet<string> = new Set(); // in the request under way
  private closed = false;
  private tries = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly fetch: FetchProfiles,
    private readonly storage?: ProfileStorage,
    private readonly limit = most,
  ) {}

  /** The profile of a person, as it is known; it is fetched if it may be another one by now. */
  get(userId: string): Profile | undefined {
    let e = this.entries.get(userId);
    if (e) {
      this.entries.delete(userId);
    } else {
      if (!this.makeRoom()) return undefined;
      e = { current: false, newest: 0n, usedAt: 0 };
    }
    e.usedAt = elapsed();
    this.entries.set(userId, e);
    if (!e.current) this.want(userId);
    return e.profile;
  }

  /** Keeps a profile that an app got otherwise, for example by changing it. */
  put(profile: Profile) {
    const e = this.entries.get(profile.userId);
    if (e ? (e.profile?.version ?? -1n) > profile.version : !this.makeRoom()) return;
    this.entries.set(profile.userId, { current: this.live, newest: 0n, usedAt: elapsed(), profile });
    this.keep([profile]);
    this.tell();
  }

  /** Calls back after each change, until the function it returns is called. */
  subscribe(listener: () => void): () => void {
    const own = () => listener(); // the same function may subscribe twice
    this.listeners.add(own);
    return () => this.listeners.delete(own);
  }

  // What follows is for the client.

  /** Begins with what was stored. */
  start() {
    this.storage?.loadProfiles().then(
      (profiles) => {
        const removed = profiles.splice(this.limit).map((p) => p.userId);
        for (const profile of profiles) {
          const e = this.entries.get(profile.userId);
          if (e) e.profile ??= profile;
          else this.entries.set(profile.userId, { current: false, newest: 0n, usedAt: 0, profile });
        }
        if (removed.length > 0) this.keep([], removed);
        if (profiles.length > 0) this.tell();
      },
      () => {}, // they are fetched
    );
  }

  /**
   * Reports the connection. A stream brings changes from its start on, so each profile is asked for once after it; polls
   * bring none.
   */
  connected(live: boolean, polling = false) {
    if (live === this.live && polling === this.polling) return;
    this.live = live;
    this.polling = polling;
    if (!live) return;
    for (const e of this.entries.values()) {
      e.current = false;
      e.newest = 0n;
    }
    this.tries = 0;
    this.tell(); // who shows a profile asks for it again
    this.schedule(gather);
  }

  /** These people have newer profiles. */
  changed(list: readonly { userId: string; version: bigint }[]) {
    for (const { userId, version } of list) {
      const e = this.entries.get(userId);
      if (!e || (e.current && (e.profile?.version ?? -1n) >= version)) continue;
      e.current = false;
      if (version > e.newest) e.newest = version;
      this.want(userId);
    }
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }

  /** Whether there is room for one more: whoever was not asked for in a while makes it. */
  private makeRoom(): boolean {
    if (this.entries.size < this.limit) return true;
    const [userId, e] = this.entries.entries().next().value!;
    if (elapsed() - e.usedAt < inUse) return false;
    this.entries.delete(userId);
    this.wanted.delete(userId);
    if (e.profile) this.keep([], [userId]);
    return true;
  }

  private want(userId: string) {
    if (this.wanted.has(userId) || this.asking.has(userId)) return;
    this.wanted.add(userId);
    if (this.tries === 0) this.schedule(gather);
  }

  private schedule(wait: number) {
    if (!this.live || this.asking.size > 0 || this.closed || this.wanted.size === 0) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.fetchWanted(), wait);
  }

  private async fetchWanted() {
    if (!this.live || this.asking.size > 0 || this.closed) return;
    const ids = [...this.wanted].slice(0, atOnce);
    const asked = ids.map((userId) => ({ userId, version: this.entries.get(userId)?.profile?.version }));
    for (const id of ids) this.wanted.delete(id);
    this.asking = new Set(ids);
    let wait = gather;
    try {
      const known = asked.map(({ userId, version }) => (version === undefined ? { userId } : { userId, version }));
      const late = this.fetched(asked, await this.fetch(known));
      this.tries = late ? 1 : 0;
      if (late) wait = firstBackoff;
    } catch (error) {
      if (!again(error)) return; // asked for again with the next stream
      for (const id of ids) this.wanted.add(id);
      wait = Math.min(firstBackoff * 2 ** this.tries++, lastBackoff);
    } finally {
      this.asking = new Set();
      this.schedule(wait);
    }
  }

  /** Keeps what came. True if there is a profile of which an old version came. */
  private fetched(asked: { userId: string; version?: bigint | undefined }[], profiles: Profile[]): boolean {
    const found = new Map(profiles.map((p) => [p.userId, p]));
    const kept: Profile[] = [];
    let late = false;
    for (const { userId, version } of asked) {
      const e = this.entries.get(userId);
      if (!e) continue;
      const p = found.get(userId);
      const own = e.profile?.version;
      if (p && (own === version || own === undefined || p.version > own)) {
        e.profile = p;
        kept.push(p);
      }
      e.current = (e.profile?.version ?? 0n) >= e.newest;
      if (e.current) continue;
      e.newest = 0n; // another server may be behind: once more
      this.wanted.add(userId);
      late = true;
    }
    if (kept.length > 0) {
      this.keep(kept);
      this.tell();
    }
    return late;
  }

  private keep(profiles: Profile[], removed: string[] = []) {
    if (!this.closed) this.storage?.storeProfiles(profiles, removed).catch(() => {}); // they are fetched again
  }

  private tell() {
    this.revision++;
    callEach(this.listeners);
  }
}

/** Whether the same request may succeed later. */
function again(error: unknown): boolean {
  switch (ConnectError.from(error).code) {
    case Code.Unauthenticated:
    case Code.PermissionDenied:
    case Code.InvalidArgument:
    case Code.Unimplemented:
      return false;
    default:
      return true;
  }
}
