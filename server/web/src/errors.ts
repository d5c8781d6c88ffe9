// What the server refuses, in words for people.
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema, RetryInfoSchema } from "#gen/google/rpc/error_details_pb.js";

const busy = "The server has too much to do.";
const again = "That did not work. Try again.";
const mismatch = "This page and the server do not fit together. Load the page again.";
const signIn = "You are not signed in any more. Sign in again.";

// By the rule or else by the reason of the error. What is not here comes in the server's words.
const refusals: Record<string, string> = {
  ACCOUNT_SUSPENDED: "Your account cannot be used.",
  ALREADY_MEMBER: "This person is a member already.",
  CANCELED: again,
  CHAT_FULL: "The chat has as many members as it can have.",
  CODES_NOT_SERVED: "This server sends no codes.",
  DEADLINE_EXCEEDED: "That took too long. Try again.",
  DRAINING: "The server is being restarted. Try again soon.",
  FORBIDDEN: "You may not do this.",
  HANDLE_RESERVED: "This handle is reserved. Choose another one.",
  HANDLE_TAKEN: "Somebody else has this handle, or had it until lately.",
  HEADERS_TOO_LARGE: mismatch,
  HISTORY_CHANGED: "The server was restored from a backup. Load the page again.",
  HOST_NOT_ALLOWED: "The server is not known by the address of this page.",
  IDEMPOTENCY_KEY_REUSED: again,
  IDENTIFIER_NOT_SERVED: "This server cannot send codes to this kind of address.",
  INTERNAL: "The server has failed. Try again.",
  INVALID_CODE: "This code is wrong, or not good any more.",
  INVALID_ISSUER_TOKEN: signIn,
  INVALID_OPERATION: "That is not possible in this chat.",
  INVALID_PAGE_TOKEN: again,
  INVALID_REFRESH_TOKEN: signIn,
  INVALID_TOKEN: again,
  INVITATION_NOT_FOUND: "This invitation has lapsed, or was answered.",
  MEMBER_NOT_FOUND: "This person is not a member.",
  METHOD_NOT_ALLOWED: mismatch,
  NOT_A_MEMBER: "You are not a member of this chat.",
  NO_IDENTIFIERS: "This server knows no addresses of people. Take the handle or the id.",
  NO_ISSUER: mismatch,
  NO_SUCH_PATH: mismatch,
  NO_SUCH_PROCEDURE: mismatch,
  OUTCOME_UNKNOWN: "It is not known whether that was done. Look, and try again.",
  POSITION_NOT_SENT: again,
  RECENT_SIGN_IN_REQUIRED: "For this you must have signed in within the last 10 minutes. Sign out and in again first.",
  REPLACED: "Another device of yours has taken this one's place.",
  REQUEST_TOO_LARGE: "That is too large.",
  RESYNC: again,
  SESSION_NOT_FOUND: "This session has ended.",
  SESSION_REVOKED: signIn,
  SLOW: busy,
  STORAGE_FULL: "The server has no room for more. Tell the people who run it.",
  STREAM_GONE: again,
  TOKEN_EXPIRED: signIn,
  TOO_MANY_BLOCKED: "Your list of blocked people is full. Unblock somebody first.",
  TOO_MANY_CHATS: "One of these people is in as many chats as possible.",
  TOO_MANY_REQUESTS: busy,
  TOO_OLD: "It waited for seven days.",
  UNAUTHENTICATED: signIn,
  UNIMPLEMENTED: mismatch,
  UNSUPPORTED_MEDIA_TYPE: mismatch,
  USER_NOT_FOUND: "Nobody is known by this name, or can be found by it.",
  VERSION_MISMATCH: "Somebody else has changed it; look again.",
  // Rules.
  ADMINS_CANNOT_ADD_ADMINS: "Only the owner adds admins.",
  ADMINS_CANNOT_REMOVE_ADMINS: "Only the owner removes an admin.",
  CALLER_BLOCKS: "You have blocked this person. Unblock the person first.",
  CANNOT_REMOVE_SELF: "You cannot remove yourself. Leave the chat instead.",
  CHAT_NOT_ACTIVE: "The chat is closed.",
  COMMAND_TOO_LARGE: "That is too much at once. Do it in parts.",
  DIRECT_CHAT_HAS_NO_NAME: "A chat of two has no name of its own.",
  DIRECT_CHAT_HAS_NO_ROLES: "A chat of two has no roles.",
  DIRECT_CHAT_MEMBERS_ARE_FIXED: "The members of a chat of two do not change.",
  DIRECT_CHAT_WITH_SELF: "A chat needs another person.",
  INVITATION_REQUIRED: "This person joins groups by invitation only.",
  LAST_MEMBER_STAYS: "The last member of a chat stays.",
  MEMBERS_CANNOT_ADD: "Only the owner and admins add members.",
  MEMBERS_CANNOT_REMOVE: "Only the owner and admins remove members.",
  MEMBERS_CANNOT_UPDATE_CHAT: "Only the owner and admins change the chat.",
  NOT_REACHABLE: "You cannot add this person or write to this person.",
  ONLY_OWNER_CHANGES_ROLES: "Only the owner changes roles.",
  OWNER_CANNOT_BE_REMOVED: "The owner cannot be removed.",
  OWNER_CANNOT_LEAVE: "The owner cannot leave the chat.",
  OWNER_ROLE_IS_FIXED: "The owner stays the owner.",
  ROLE_NOT_ASSIGNABLE: "This role cannot be given.",
};

export interface Refusal {
  /** Empty if the server did not answer. */
  reason: string;
  /** The rule of a chat that refused; empty if none did. */
  rule: string;
  /** The user whom it is about; empty if there is none. */
  userId: string;
}

/** Why the server refused a call. */
export function refusalOf(error: unknown): Refusal {
  const info = ConnectError.from(error).findDetails(ErrorInfoSchema)[0];
  return { reason: info?.reason ?? "", rule: info?.metadata.rule ?? "", userId: info?.metadata.user_id ?? "" };
}

export const notFound = (name: string) => `Nobody is known as “${name}”, or can be found by it.`;

/** What went wrong, for people. */
export function errorText(error: unknown): string {
  const e = ConnectError.from(error);
  if (!navigator.onLine) return "There is no connection.";
  const { reason, rule, userId } = refusalOf(e);
  if (reason === "USER_NOT_FOUND" && userId) return notFound(userId);
  const unreached = e.code === Code.Unavailable || /fetch|load failed/i.test(e.rawMessage); // as browsers say it
  if (reason === "" && unreached) return "The server does not answer.";
  const theirs = e.rawMessage ? e.rawMessage[0]!.toUpperCase() + e.rawMessage.slice(1) : "That did not work";
  const delay = e.findDetails(RetryInfoSchema)[0]?.retryDelay;
  const text = refusals[rule] ?? refusals[reason] ?? theirs;
  const sentence = /[.!?]$/.test(text) ? text : `${text}.`;
  return delay && !text.includes("Try again") ? `${sentence} Try again in ${waitText(durationMs(delay))}.` : sentence;
}

function waitText(ms: number): string {
  const minutes = Math.ceil(ms / 60_000);
  if (minutes > 90) return `${Math.ceil(minutes / 60)} hours`;
  return minutes > 1 ? `${minutes} minutes` : `${Math.max(Math.ceil(ms / 1000), 1)} seconds`;
}

const sendRefusals: Record<string, string> = {
  FORBIDDEN: "You may not write here.",
  TOO_LARGE: "It is too long.",
  INVALID_ARGUMENT: "It cannot be sent as it is.",
};

/** Why a message was refused. */
export const refusalText = (reason: string) =>
  sendRefusals[reason] ?? refusals[reason] ?? `The server refused it: ${reason || "no reason given"}.`;
