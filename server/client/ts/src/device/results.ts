// Answers to calls.
import { Code } from "@connectrpc/connect";
import type { GetChatResponse, ListMembersResponse } from "#gen/parley/chat/v1/chat_service_pb.js";
import type { AckResponse, ExtendResponse, SyncResponse } from "#gen/parley/delivery/v1/delivery_service_pb.js";
import type {
  ListChangesResponse,
  ListMessagesResponse,
  MarkReadResponse,
  SendMessageResponse,
} from "#gen/parley/message/v1/message_service_pb.js";
import { type Chat, notAMember, overview, removed } from "./chat.js";
import { changes, membersPage, page } from "./content.js";
import { lastBackoff, type Machine, type PendingCall } from "./machine.js";
import { acknowledged, decided, definite, sent } from "./outbox.js";
import { answered, generation, refused } from "./history.js";
import { polled, pollFailed } from "./poll.js";
import { dropUnlisted, expires } from "./stream.js";
import type { Failure, Kind, Response } from "./types.js";

/** Handles the end of a call: with a response and what it says of the store's history, or with a failure. */
export function result(m: Machine, call: number, res?: Response, failure?: Failure, history = "") {
  const p = m.calls.get(call);
  if (!p) return;
  m.calls.delete(call);
  if (slots[p.kind] !== undefined && p.kind !== "markRead") m.reads--;
  const why = failure ?? (history === "" ? undefined : answered(m, p.asked, history));
  m.unnamed ||= !why && history === "" && m.session.generation === "" && p.kind !== "refresh";
  refused(m, p.asked, why);
  if (why && p.kind !== "sendMessage") m.failed(why);
  switch (p.kind) {
    case "refresh":
      return refreshed(m, why);
    case "sync":
      if (call === m.sync.call) synced(m, history, res as SyncResponse | undefined, why);
      return;
    case "ack":
      return acknowledged(m, call, p, res as AckResponse | undefined, why);
    case "extend":
      return extended(m, call, res as ExtendResponse | undefined, why);
    case "sendMessage":
      return sent(m, call, p, res as SendMessageResponse | undefined, why);
    default:
      return chatResult(m, call, p, res, why);
  }
}

/** Where a chat keeps the call of a kind that is under way. */
const slots: { [K in Kind]?: "chatCall" | "contentCall" | "membersCall" | "readCall" } = {
  getChat: "chatCall",
  listMessages: "contentCall",
  listChanges: "contentCall",
  listMembers: "membersCall",
  markRead: "readCall",
};

function refreshed(m: Machine, why?: Failure) {
  m.refreshing = 0;
  if (!why) {
    m.needRefresh = false;
    m.refreshTries = 0;
  } else if (why.code === Code.Unauthenticated || why.code === Code.PermissionDenied) {
    m.stop(why);
  } else {
    m.refreshAt = m.cfg.clock() + Math.max(why.retryAfter, m.backoff(m.refreshTries));
    m.refreshTries++;
  }
}

function extended(m: Machine, call: number, res?: ExtendResponse, why?: Failure) {
  if (call !== m.stream.extendCall) return;
  m.stream.extendCall = 0;
  if (res && !why) expires(m, res);
  else m.stream.extendAt = m.cfg.clock() + lastBackoff;
}

/** Applies a page of a synchronisation. */
function synced(m: Machine, history: string, res?: SyncResponse, why?: Failure) {
  const s = m.sync;
  s.call = 0;
  if (why || !res) {
    syncFailed(m, why);
    return;
  }
  s.tries = 0;
  if (history === "") generation(m, res.generation);
  for (const ov of res.overviews) {
    const c = m.chats.get(ov.chat?.chatId ?? "");
    s.news ||= !c || (ov.head?.version ?? 0n) > c.record.newest; // some come again
    overview(m, ov, true);
  }
  for (const l of res.leftChats) removed(m, l.chatId, l.version);
  s.page = res.nextPageToken;
  if (s.page !== "") return;
  if (res.full) dropUnlisted(m, s.began);
  s.need = false;
  m.setToken(res.token);
  polled(m, s.news);
}

function syncFailed(m: Machine, why?: Failure) {
  if (why?.code === Code.InvalidArgument && m.sync.page !== "") m.sync.page = ""; // a page token of long ago
  else if (why?.reason === "INVALID_TOKEN" && m.sync.token !== "") m.resync();
  m.sync.at = m.cfg.clock() + Math.max(m.backoff(m.sync.tries), why?.retryAfter ?? 0);
  m.sync.tries++;
  const answered = why && (why.reason !== "" || why.code === Code.Unauthenticated);
  if (!answered) pollFailed(m);
}

function chatResult(m: Machine, call: number, p: PendingCall, res?: Response, why?: Failure) {
  const c = p.chat!;
  if (m.chats.get(c.id) !== c) return;
  const slot = slots[p.kind]!;
  if (c[slot] !== call) return; // the chat was started over since
  c[slot] = 0;
  c.wake();
  if (why || !res) {
    chatFailed(m, c, p, why ?? { code: Code.Internal, reason: "", retryAfter: 0 });
    return;
  }
  c.tries = 0;
  c.seen = m.step;
  switch (p.kind) {
    case "getChat": {
      const ov = (res as GetChatResponse).overview;
      if (ov) overview(m, ov, false);
      if ((ov?.head?.version ?? 0n) < p.newest) c.pause(); // older than what existed when it was requested
      return;
    }
    case "listMembers":
      return membersPage(c, res as ListMembersResponse);
    case "listMessages":
      return page(c, res as ListMessagesResponse, p.older);
    case "listChanges":
      return changes(c, p.after, res as ListChangesResponse);
    case "markRead":
      return decided(c, p.marks[0]!, (res as MarkReadResponse).state);
  }
}

function chatFailed(m: Machine, c: Chat, p: PendingCall, why: Failure) {
  if (why.reason === "NOT_A_MEMBER") {
    notAMember(m, c, p.newest);
    return;
  }
  if (p.kind === "markRead" && definite(why)) decided(c, p.marks[0]!, undefined);
  else if (p.kind === "listMembers") {
    c.pages = []; // from the first page
    c.pageToken = "";
  } else if (p.older) {
    c.wantOlder = true; // as long as it has not been read
  }
  c.pause(why);
}
