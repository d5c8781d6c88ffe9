// A device of the TypeScript client, for tests in Go: it sends what standard input says, and prints what it shows.
//
//   node device.mjs PACKAGE BASE TOKEN USER CHAT...
import { createInterface } from "node:readline";

const [path, baseUrl, token, userId, ...chats] = process.argv.slice(2);
const { Client } = await import(`${path}/dist/index.js`);
const onSendFailed = ({ content }, reason) => {
  console.error(`${content} was refused: ${reason}`);
  process.exit(1);
};
const client = new Client({ baseUrl, token, userId, onSendFailed }).start();
for (const id of chats) client.open(id);

const shown = (id) => {
  const { loaded = false, first = 0n, head, messages = [] } = client.chat(id) ?? {};
  return {
    loaded,
    first: Number(first),
    last: Number(head?.sequence ?? 0n),
    messages: messages.map((m) => ({ id: m.messageId, sequence: Number(m.sequence), content: m.content })),
  };
};
for await (const line of createInterface({ input: process.stdin })) {
  const { chat, text } = JSON.parse(line);
  if (chat) client.send(chat, text);
  else console.log(JSON.stringify({ unsent: client.unsent, chats: Object.fromEntries(chats.map((id) => [id, shown(id)])) }));
}
await client.close();
