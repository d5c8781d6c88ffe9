// A client against a server that is a few functions.
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import { ErrorInfoSchema } from "../gen/google/rpc/error_details_pb.js";
import { ChatService } from "../gen/parley/chat/v1/chat_service_pb.js";
import { DeliveryService } from "../gen/parley/delivery/v1/delivery_service_pb.js";
import { UserService } from "../gen/parley/user/v1/user_service_pb.js";
import { MessageService } from "../gen/parley/message/v1/message_service_pb.js";
import { Client } from "../dist/index.js";

/**
 * A server with one chat, whose stream lives until end is called, with the end code, if there is one. Only the token
 * "good" is good. sends has what the next sends do first: throw an error, or wait for a promise. With held, streams bring
 * nothing, as behind a proxy that holds them back.
 */
export function setUp(options = {}) {
  const s = { refused: 0, tokens: [], sent: [], failed: [], version: 1n, reason: "", endCode: 0, streams: 0, sends: [] };
  s.end = s.frame = () => {};
  s.says = (senderId, content, clientMessageId) => {
    const sequence = BigInt(stored.length + 1);
    const m = { messageId: `m${sequence}`, chatId: "c", senderId, content, clientMessageId, sequence, version: sequence + 1n };
    stored.push(m);
    return m;
  };
  s.profile = (version) => {
    s.version = version;
    s.frame({ body: { case: "profileChanged", value: { userId: "bob", version } } });
  };
  const stored = []; // messages, from sequence 1 and version 2 on
  const head = () => ({ version: BigInt(stored.length + 1), sequence: BigInt(stored.length) });
  const overview = () => ({ chat: { chatId: "c", name: "Tea", version: 1n, memberCount: 1 }, head: head(), state: {} });
  const check = (context) => {
    if (context.requestHeader.get("Authorization") === "Bearer good") return;
    s.refused++;
    throw new ConnectError("token", Code.Unauthenticated);
  };
  const refuse = (code, reason) => {
    throw new ConnectError("no", code, undefined, [{ desc: ErrorInfoSchema, value: { reason, domain: "parley" } }]);
  };
  const router = ({ service }) => {
    service(DeliveryService, {
      sync: (_, context) => {
        check(context);
        return { overviews: [overview()], token: "t1", full: true, generation: "g" };
      },
      async *subscribe(_, context) {
        check(context);
        s.streams++;
        if (s.held) await new Promise((end) => context.signal.addEventListener("abort", () => end()));
        const frames = [
          { body: { case: "hello", value: { streamId: "s", generation: "g" } } },
          { body: { case: "heartbeat", value: { token: "t2" } } },
        ];
        yield { firstPosition: 1n, frames };
        const ended = new Promise((end) => {
          s.end = end;
          context.signal.addEventListener("abort", () => end());
        });
        const changed = new Promise((tell) => {
          s.frame = tell;
        });
        const frame = await Promise.race([ended, changed]);
        if (frame) yield { firstPosition: 3n, frames: [frame] };
        await ended;
        if (s.endCode) yield { firstPosition: 3n, frames: [{ body: { case: "end", value: { code: s.endCode } } }] };
        if (s.reason) refuse(Code.Unauthenticated, s.reason);
      },
      ack: () => ({}),
    });
    service(MessageService, {
      sendMessage: async ({ content, clientMessageId }) => {
        const first = s.sends.shift();
        if (first instanceof Error) throw first;
        await first;
        if (content === "bad") refuse(Code.InvalidArgument, "TOO_BAD");
        let m = stored.find((o) => o.clientMessageId === clientMessageId);
        if (!m) {
          m = s.says("ann", content, clientMessageId);
          s.sent.push(content);
        }
        return { messageId: m.messageId, sequence: m.sequence, version: m.version, clientMessageId };
      },
      listMessages: ({ beforeSequence: before }) =>
        before
          ? { messages: stored.slice(0, Number(before) - 1).slice(-2), hasMore: before > 3n, head: head() }
          : { messages: stored, head: head() },
      listChanges: ({ afterVersion }) => ({
        changes: stored.filter((m) => m.version > afterVersion).map((m) => ({ version: m.version, body: { case: "message", value: m } })),
        head: head(),
      }),
    });
    service(UserService, {
      batchGetProfiles: ({ knownProfiles }) => ({
        profiles: knownProfiles
          .filter((p) => p.version !== s.version)
          .map(({ userId }) => ({ userId, displayName: `Bob ${s.version}`, version: s.version })),
      }),
    });
    service(ChatService, {
      getChat: (_, context) => (check(context), { overview: overview() }),
      listMembers: () => ({ members: [{ userId: "ann", version: 1n }], head: head() }),
      createChat: () => ({ overview: overview() }),
    });
  };
  s.client = new Client({
    baseUrl: "http://parley.test",
    userId: "ann",
    token: (renew) => (s.tokens.push(renew), renew ? "good" : "stale"),
    transport: (tokens) => createRouterTransport(router, { transport: { interceptors: [tokens.interceptor] } }),
    onSendFailed: (entry, reason) => s.failed.push([entry.content, reason]),
    ...options,
  });
  s.until = (holds) =>
    new Promise((done) => {
      const look = () => holds() && (stop(), done());
      const stop = s.client.subscribe(look);
      look();
    });
  return s;
}
