// Client of Parley: see Client.
export { Client, type ClientOptions } from "./client.js";
export type { TokenSource, Tokens } from "./calls.js";
export type { Profiles, ProfileStorage } from "./profiles.js";
export type { Connection, Status } from "./runner.js";
export { IndexedDBStorage, MemoryStorage } from "./storage.js";
export type {
  Batch,
  ChatRecord,
  LeftChat,
  Member,
  OutboxEntry,
  RefusedMessage,
  Remnants,
  Snapshot,
  Storage,
} from "./device/types.js";
export type { ChatView } from "./device/view.js";
