// One use of the TypeScript client that openapi-generator makes.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { ChatServiceApi, ChatType, Configuration, MessageServiceApi, ResponseError } from "./client/index.js";

const [basePath, accessToken, other] = process.argv.slice(2);
const configuration = new Configuration({ basePath, accessToken });
const chats = new ChatServiceApi(configuration);
const messages = new MessageServiceApi(configuration);
const { overview } = await chats.createChat({ createChatRequest: { type: ChatType.ChatTypeGroup, name: "TypeScript", memberIds: [other] } });
const chatId = overview!.chat!.chatId!;
const sent = await messages.sendMessage({ chatId, sendMessageRequest: { content: "Hello", clientMessageId: randomUUID() } });
await messages.markRead({ chatId, markReadRequest: { sequence: sent.sequence! } });
const page = await messages.listMessages({ chatId, afterSequence: "0" });
assert.equal(page.messages?.[0].content, "Hello");
const { changes } = await messages.listChanges({ chatId, afterVersion: "0" });
assert.equal(changes?.at(-1)?.message?.sequence, "1");
await assert.rejects(chats.getChat({ chatId: "chat_" + "0".repeat(26) }), (e: ResponseError) => e.response.status === 403);
