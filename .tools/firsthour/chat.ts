// Chat is a chat in a terminal: it sends the lines of standard input and prints the messages of all members, each once
// and in order. It stands on generated stubs alone; what the protocol asks for is said at the Frame of frame.proto.
//
//   chat BASE TOKEN CHAT connect|connect-h2c|grpc|grpc-web
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { ErrorInfoSchema } from "@parley/gen/google/rpc/error_details_pb.js";
import { DeliveryService } from "@parley/gen/parley/delivery/v1/delivery_service_pb.js";
import { EndCode, type Frame } from "@parley/gen/parley/delivery/v1/frame_pb.js";
import type { Message } from "@parley/gen/parley/message/v1/message_pb.js";
import { MessageService } from "@parley/gen/parley/message/v1/message_service_pb.js";

const [baseUrl, bearer, chatId, protocol] = process.argv.slice(2);
const headers: Interceptor = (next) => (req) => {
  req.header.set("Authorization", `Bearer ${bearer}`);
  if (place) req.header.set("Parley-History", place);
  return next(req);
};
const options = { baseUrl, interceptors: [headers] };
const transport = {
  connect: () => createConnectTransport({ ...options, httpVersion: "1.1" }),
  "connect-h2c": () => createConnectTransport({ ...options, httpVersion: "2" }),
  grpc: () => createGrpcTransport(options),
  "grpc-web": () => createGrpcWebTransport({ ...options, httpVersion: "1.1" }),
}[protocol]!();
const messages = createClient(MessageService, transport);
const delivery = createClient(DeliveryService, transport);
const sleep = (ms: number) => new Promise((done) => setTimeout(done, ms));

// Errors that repetition does not fix.
const final = [Code.InvalidArgument, Code.PermissionDenied, Code.Unauthenticated, Code.FailedPrecondition];
function fail(what: string): never {
  console.error(what);
  process.exit(1);
}

let token = ""; // of the last synchronisation
let generation = ""; // of the server's store
let commit = 0n; // the newest of that generation that was shown
let place = ""; // both, as calls say them
let own = 0n; // version of the chat that is shown
let newest = 0n; // newest version that was seen
let last = 0n; // sequence of the last message that was shown
let pause = 250;

function show(m: Message) {
  if (m.sequence <= last) return console.error("shown before:", m.sequence);
  last = m.sequence;
  console.log(`${m.sequence} ${m.senderId} ${m.content}`);
}

function apply({ chatId: of, afterVersion, version, body }: Frame) {
  if (body.case === "hello" && body.value.generation !== generation) {
    generation = body.value.generation; // the server was started again
    commit = 0n;
  } else if (body.case === "heartbeat") {
    token = body.value.token; // all that was missed has come
    pause = 250;
  } else if (body.case === "reset" && of === "") {
    token = "";
    own = newest = 0n;
  } else if (body.case === "end") {
    const { code, reconnectAfter } = body.value;
    if (code === EndCode.SESSION_REVOKED || code === EndCode.REPLACED) fail(`ended for good: ${EndCode[code]}`);
    if (reconnectAfter) pause = durationMs(reconnectAfter);
  } else if (of === chatId) {
    const seen = body.case === "head" || body.case === "reset" ? body.value.version : version;
    if (seen > newest) newest = seen;
    if (afterVersion <= own && own < version) {
      own = version;
      if (body.case === "message") show(body.value);
    }
  }
}

// Keeps how far the store's history was shown.
function shown(at: bigint) {
  if (at > commit) commit = at;
  place = `${generation}-${commit}`;
}

async function catchUp() {
  while (own < newest) {
    let said: string[] = [];
    const onHeader = (header: Headers) => void (said = header.get("Parley-History")!.split("-"));
    const page = await messages.listChanges({ chatId, afterVersion: own }, { onHeader });
    if (said[0] !== generation) throw new Error("the server was started again"); // and the stream has ended
    shown(BigInt(said[1]));
    for (const { body } of page.changes) if (body.case === "message") show(body.value);
    for (const m of page.messages) show(m); // too far behind: the newest page instead
    own = page.version;
  }
}

async function follow() {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), 50_000); // something comes every 15 s
  try {
    let streamId = "";
    for await (const batch of delivery.subscribe({ token, knownChats: [{ chatId, version: own }] }, stop)) {
      timer.refresh();
      for (const frame of batch.frames) {
        if (frame.body.case === "hello") streamId = frame.body.value.streamId;
        apply(frame);
      }
      shown(batch.commit);
      await catchUp();
      const position = batch.firstPosition + BigInt(batch.frames.length) - 1n;
      await delivery.ack({ streamId, position }).catch(() => {}); // if one is lost, the next one covers it
    }
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

async function keepFollowing() {
  for (; ; pause = Math.min(2 * pause, 5000)) {
    const error = await follow().then(() => new ConnectError("no status"), ConnectError.from);
    console.error("stream ended:", error.message);
    if (final.includes(error.code)) process.exit(1);
    // Not the code: a connection that was reset is "aborted" too.
    if (error.findDetails(ErrorInfoSchema).some((info) => info.reason === "HISTORY_CHANGED")) {
      // The server's data are an older copy: nothing that was shown counts.
      token = place = "";
      own = newest = last = 0n;
    }
    await sleep(pause / 2 + Math.random() * pause);
  }
}

// A message is retried under the same id until it is stored or refused.
async function send(content: string) {
  for (const clientMessageId = randomUUID(); ; await sleep(Math.random() * 1000)) {
    try {
      await messages.sendMessage({ chatId, content, clientMessageId }, { timeoutMs: 10_000 });
      return;
    } catch (e) {
      if (final.includes(ConnectError.from(e).code)) fail(`refused: ${ConnectError.from(e).message}`);
    }
  }
}

void keepFollowing();
for await (const line of createInterface({ input: process.stdin })) await send(line);
process.exit(0);
