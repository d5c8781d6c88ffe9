// A small web client: signs in with a token, makes a chat, sends, and follows its stream. It keeps what the protocol
// asks for: the token of the last synchronisation, the version applied, and messages that are not sent yet.
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { ChatService, CreateChatRequestSchema } from "../../gen/ts/parley/chat/v1/chat_service_pb.js";
import { ChatType } from "../../gen/ts/parley/chat/v1/chat_pb.js";
import { DeliveryService } from "../../gen/ts/parley/delivery/v1/delivery_service_pb.js";
import type { Frame } from "../../gen/ts/parley/delivery/v1/frame_pb.js";
import type { Message } from "../../gen/ts/parley/message/v1/message_pb.js";
import { MessageService } from "../../gen/ts/parley/message/v1/message_service_pb.js";

const element = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const base = document.body.dataset.server!;
const show = (state: string) => (element("state").textContent = state);
const sleep = (ms: number) => new Promise((done) => setTimeout(done, ms));

let bearer = "";
const auth: Interceptor = (next) => (req) => {
  req.header.set("Authorization", `Bearer ${bearer}`);
  return next(req);
};
const transport = createConnectTransport({ baseUrl: base, useBinaryFormat: true, interceptors: [auth] });
const chats = createClient(ChatService, transport);
const messages = createClient(MessageService, transport);
const delivery = createClient(DeliveryService, transport);

// What the streams of this page have brought, for whoever looks at it.
const count = { streams: 0, heartbeats: 0 };
const counted = () => Object.assign(document.body.dataset, count);

let token = ""; // of the last synchronisation
let chatId = "";
let own = 0n; // version applied
let newest = 0n; // version seen
const unsent: { id: string; content: string }[] = [];

function add(m: Message) {
  const line = document.createElement("li");
  line.textContent = `${m.sequence} ${m.senderId}: ${m.content}`;
  element("log").append(line);
}

function apply(frame: Frame) {
  if (frame.chatId !== chatId) return;
  const at = frame.body.case === "head" || frame.body.case === "reset" ? frame.body.value.version : frame.version;
  if (at > newest) newest = at;
  if (frame.afterVersion <= own && own < frame.version) {
    own = frame.version;
    if (frame.body.case === "message") add(frame.body.value);
  }
}

async function catchUp() {
  while (own < newest) {
    const page = await messages.listChanges({ chatId, afterVersion: own });
    for (const change of page.changes) if (change.body.case === "message" && change.version > own) add(change.body.value);
    own = page.version;
  }
}

// Only one at a time sends, in order; what fails stays and goes again with the same id.
let sending = false;
async function flush() {
  if (sending) return;
  sending = true;
  try {
    while (unsent.length > 0) {
      await messages.sendMessage({ chatId, content: unsent[0].content, clientMessageId: unsent[0].id });
      unsent.shift();
    }
  } catch (e) {
    if (ConnectError.from(e).code === Code.InvalidArgument) unsent.shift();
  } finally {
    sending = false;
    element("unsent").textContent = String(unsent.length);
  }
}

async function follow() {
  for (let wait = 100; ; wait = Math.min(2 * wait, 1000)) {
    try {
      const knownChats = chatId === "" ? [] : [{ chatId, version: own }];
      let stream = "";
      let position = 0n;
      for await (const batch of delivery.subscribe({ token, knownChats })) {
        position = batch.firstPosition + BigInt(batch.frames.length) - 1n;
        for (const frame of batch.frames) {
          switch (frame.body.case) {
            case "hello":
              stream = frame.body.value.streamId;
              count.streams++;
              counted();
              break;
            case "heartbeat":
              token = frame.body.value.token;
              count.heartbeats++;
              counted();
              show("live");
              wait = 100;
              void flush();
              break;
            default:
              apply(frame);
          }
        }
        await catchUp();
        if (stream !== "") await delivery.ack({ streamId: stream, position });
      }
    } catch (e) {
      console.debug("stream ended:", ConnectError.from(e).message);
    }
    show("away");
    await sleep(wait / 2 + Math.random() * wait);
  }
}

element("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  bearer = element<HTMLInputElement>("token").value;
  void chats.listChats({}).then(follow, (e) => show(ConnectError.from(e).message));
});

element("create").addEventListener("click", async () => {
  const request = create(CreateChatRequestSchema, { type: ChatType.GROUP, name: "Tea", memberIds: ["bob"] });
  const { overview } = await chats.createChat(request);
  own = newest = overview!.head!.version;
  chatId = overview!.chat!.chatId;
  element("chat").textContent = chatId;
});

element("send").addEventListener("submit", (event) => {
  event.preventDefault();
  unsent.push({ id: crypto.randomUUID(), content: element<HTMLInputElement>("content").value });
  element("unsent").textContent = String(unsent.length);
  void flush();
});
