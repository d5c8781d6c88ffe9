// A chat in a terminal: prints each message once, and sends the lines of standard input.
//
//   node chat.mjs BASE TOKEN USER [OTHER]     with OTHER it makes the group
import { createInterface } from "node:readline";
import { Client } from "@parley/client";

const [baseUrl, token, userId, other] = process.argv.slice(2);
const client = new Client({ baseUrl, token, userId }).start();
const shown = new Set();
client.subscribe(() => {
  for (const { chatId, open, messages } of client.chats()) {
    if (!open) client.open(chatId);
    for (const m of messages) if (!shown.has(m.messageId)) shown.add(m.messageId) && console.log(`${m.senderId}: ${m.content}`);
  }
});
if (other) await client.createGroup("Tea", [other]);
for await (const line of createInterface({ input: process.stdin })) client.send(client.chats()[0].chatId, line);
await client.close();
