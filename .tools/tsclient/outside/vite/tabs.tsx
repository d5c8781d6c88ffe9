// The group of a user in any of their tabs, with hooks. The first token is stale, as after a night.
import { createRoot } from "react-dom/client";
import { useState } from "react";
import { Client } from "@parley/client";
import { useChat, useChats, useRead, useStatus } from "@parley/client/react";

const at = new URLSearchParams(location.hash.slice(1));
const client = new Client({
  baseUrl: at.get("base")!,
  userId: at.get("user")!,
  token: (renew) => (renew ? at.get("token")! : "stale"),
});
client.start();
Object.assign(window, { client });

function Tea() {
  const [text, setText] = useState("");
  const status = useStatus(client);
  const first = useChats(client)[0];
  const chat = useChat(client, first?.chatId);
  useRead(client, chat);
  const send = () => {
    client.send(chat!.chatId, text);
    setText("");
  };
  return (
    <main>
      <p id="status">{status.connection}</p>
      <p id="unread">{String(chat?.unread ?? "")}</p>
      <p id="members">{chat?.members?.map((m) => m.userId).join(" ")}</p>
      <form action={send}>
        <input aria-label="message" value={text} onChange={(e) => setText(e.target.value)} />
        <button disabled={!chat}>Send</button>
      </form>
      <ol>{chat?.messages.map((m) => <li key={m.messageId}>{m.content}</li>)}</ol>
      <ul>{chat?.outbox.map((u) => <li key={u.clientMessageId}>{u.content}</li>)}</ul>
    </main>
  );
}

createRoot(document.getElementById("root")!).render(<Tea />);
