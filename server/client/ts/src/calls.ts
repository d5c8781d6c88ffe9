// Makes the calls of a Machine over Connect, and puts the bearer token into each call.
import { type CallOptions, createClient, Code, ConnectError, type Interceptor, type Transport } from "@connectrpc/connect";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { AuthService } from "#gen/parley/auth/v1/auth_service_pb.js";
import { ChatService } from "#gen/parley/chat/v1/chat_service_pb.js";
import { DeliveryService } from "#gen/parley/delivery/v1/delivery_service_pb.js";
import { MessageService } from "#gen/parley/message/v1/message_service_pb.js";
import { UserService } from "#gen/parley/user/v1/user_service_pb.js";
import { ErrorInfoSchema, RetryInfoSchema } from "#gen/google/rpc/error_details_pb.js";
import type { Call, Failure, Response } from "./device/types.js";

/**
 * Returns the bearer token; with renew, another one than before, which was refused or ends soon. An error with
 * Code.Unauthenticated or Code.PermissionDenied stops the client. Any other error or exception is a failed refresh,
 * which is repeated after a wait.
 */
export type TokenSource = (renew: boolean) => string | Promise<string>;

const callTimeout = 30_000;

/** For the first calls after a change of the network: their connection may be dead. */
export const shortTimeout = 10_000;

/** Remembers the bearer token until another one is needed. */
export class Tokens {
  private last: string | undefined;
  private asked: Promise<string> | undefined; // under way

  constructor(private readonly source: TokenSource) {}

  get(renew = false): Promise<string> {
    if (this.asked) return this.asked;
    if (this.last !== undefined && !renew) return Promise.resolve(this.last);
    const another = renew && this.last !== undefined;
    this.asked = (async () => this.source(another))();
    return this.asked.then(
      (token) => {
        this.asked = undefined;
        return (this.last = token);
      },
      (error: unknown) => {
        this.asked = undefined;
        throw error;
      },
    );
  }

  /** A token other than one that was refused: another caller may have got it already. */
  private other(refused: string): Promise<string> {
    return this.asked || this.last === refused ? this.get(true) : this.get();
  }

  /** Puts the token into a call. One that is refused, other than a stream, is made once more with another token. */
  readonly interceptor: Interceptor = (next) => async (req) => {
    const token = await this.get().catch(noToken);
    req.header.set("Authorization", `Bearer ${token}`);
    if (req.stream) return next(req);
    try {
      return await next(req);
    } catch (error) {
      if (ConnectError.from(error).code !== Code.Unauthenticated) throw error;
      const other = await this.other(token).catch(noToken);
      if (other === token) throw error;
      req.header.set("Authorization", `Bearer ${other}`);
      return next(req);
    }
  };
}

const tokenless = new WeakSet<ConnectError>(); // failures of calls for which there was no token

/** The failure of a call for which there was no token, as the source says it. */
function noToken(error: unknown): never {
  const e = ConnectError.from(error);
  // A copy: a refresh may have the same error.
  const failure = new ConnectError(e.rawMessage, e.code, e.metadata, undefined, error);
  failure.details = e.details;
  tokenless.add(failure);
  throw failure;
}

/** Why a call failed, for a Machine. Without a token the server has not refused what the call does. */
export function failureOf(error: unknown): Failure {
  const e = ConnectError.from(error);
  const delay = e.findDetails(RetryInfoSchema)[0]?.retryDelay;
  return {
    code: tokenless.has(e) ? Code.Unauthenticated : e.code,
    reason: e.findDetails(ErrorInfoSchema)[0]?.reason ?? "",
    retryAfter: delay ? durationMs(delay) : 0,
    message: e.rawMessage,
  };
}

const historyHeader = "Parley-History";

export const historyHeaders = (history: string): Record<string, string> =>
  history === "" ? {} : { [historyHeader]: history };

/** What an answer says of the history; empty from a server of an earlier release. */
export const historyIn = (h: Headers) => h.get(historyHeader) ?? "";

export const unavailable: Failure = { code: Code.Unavailable, reason: "", retryAfter: 0 };

export type Calls = ReturnType<typeof callsOver>;

/** The services, and `make` for whatever a Machine wants but subscribe and closeStream. */
export function callsOver(transport: Transport, tokens: Tokens) {
  const chats = createClient(ChatService, transport);
  const messages = createClient(MessageService, transport);
  const delivery = createClient(DeliveryService, transport);
  const users = createClient(UserService, transport);
  const auth = createClient(AuthService, transport);
  type Unary = Exclude<Call, { kind: "subscribe" | "closeStream" }>;
  async function make(
    call: Unary,
    signal: AbortSignal,
    timeoutMs = callTimeout,
  ): Promise<{ response?: Response | undefined; history: string }> {
    let history = "";
    const options = {
      signal,
      timeoutMs,
      headers: "history" in call ? historyHeaders(call.history) : {},
      onHeader: (h: Headers) => void (history = historyIn(h)),
    };
    const response = await answer(call, options);
    return { response, history };
  }
  async function answer(call: Unary, options: CallOptions): Promise<Response | undefined> {
    switch (call.kind) {
      case "refresh":
        await tokens.get(true);
        return undefined;
      case "extend":
        await tokens.get(true);
        return delivery.extend(call.request, options);
      case "sync":
        return delivery.sync(call.request, options);
      case "ack":
        return delivery.ack(call.request, options);
      case "getChat":
        return chats.getChat(call.request, options);
      case "listMembers":
        return chats.listMembers(call.request, options);
      case "listMessages":
        return messages.listMessages(call.request, options);
      case "listChanges":
        return messages.listChanges(call.request, options);
      case "sendMessage":
        return messages.sendMessage(call.request, options);
      case "markRead":
        return messages.markRead(call.request, options);
    }
  }
  return { chats, messages, delivery, users, auth, make };
}
