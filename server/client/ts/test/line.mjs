// A client of this package under `server conformance`: commands and answers are lines of JSON. The protocol is in
// server/docs/write-a-client.md.
//
//   server conformance -- node test/line.mjs
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { deserialize, serialize } from "node:v8";
import { MemberRole } from "../gen/parley/chat/v1/chat_pb.js";
import { packBatch, unpackBatch } from "../dist/device/pack.js";
import { Client, MemoryStorage } from "../dist/index.js";

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

/** Keeps batches in a file, each after its length. A process that is killed leaves at most one part of a batch. */
class FileStorage extends MemoryStorage {
  constructor(path) {
    super();
    this.path = path;
  }

  async load() {
    const bytes = existsSync(this.path) ? readFileSync(this.path) : Buffer.alloc(0);
    for (let at = 0; at + 4 <= bytes.length; ) {
      const end = at + 4 + bytes.readUInt32BE(at);
      if (end > bytes.length) break;
      await super.store(unpackBatch(deserialize(bytes.subarray(at + 4, end))));
      at = end;
    }
    return super.load();
  }

  async store(batch) {
    const packed = serialize(packBatch(batch));
    const length = Buffer.alloc(4);
    length.writeUInt32BE(packed.length);
    appendFileSync(this.path, Buffer.concat([length, packed]));
    await super.store(batch);
    for (const { content } of batch.outbox) say({ sent: content });
  }
}

const now = Date.now;
let ahead = 0; // of the wall clock, in milliseconds
Date.now = () => now() + ahead;

let client;
const asked = []; // calls that wait for a token
const refused = [];

const commands = {
  start({ url, user, token, directory, wall = 0 }) {
    ahead = wall;
    client = new Client({
      baseUrl: url,
      userId: user,
      token: (renew) => (renew ? new Promise((got) => asked.push(got) === 1 && say({ want: "token" })) : token),
      storage: new FileStorage(join(directory, "batches")),
      onSendFailed: ({ content }, reason) => refused.push({ text: content, reason }),
    }).start();
  },
  token({ token }) {
    for (const got of asked.splice(0)) got(token);
  },
  open: ({ chat }) => client.open(chat),
  older: ({ chat }) => client.loadOlder(chat),
  read: ({ chat, sequence }) => client.markRead(chat, BigInt(sequence)),
  send: ({ chat, text }) => client.send(chat, text),
  clock({ wall = 0 }) {
    ahead = wall;
  },
  show() {
    const chats = client.chats();
    const outbox = chats.flatMap((c) => c.outbox.map((u) => u.content));
    say({ shown: { connection: client.status.connection, chats: chats.map(shown), outbox, refused } });
  },
  stop: () => process.exit(0),
};

const shown = (c) => ({
  chat: c.chatId,
  title: c.chat?.name ?? "",
  unread: Number(c.unread),
  read: Number(c.state?.readSequence ?? 0n),
  peerRead: Number(c.peerRead),
  head: Number(c.head?.sequence ?? 0n),
  members: (c.members ?? []).map((m) => ({ user: m.userId, role: MemberRole[m.role].toLowerCase() })),
  messages: c.messages.map((m) => ({ sequence: Number(m.sequence), sender: m.senderId, text: m.content })),
});

say({ can: ["keep", "older", "clock"] });
createInterface({ input: process.stdin })
  .on("line", (line) => {
    const command = JSON.parse(line);
    commands[command.do]?.(command);
  })
  .on("close", () => process.exit(0));
