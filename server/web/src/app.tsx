// The chats beside the open one; on a narrow screen one of both.
import type { Client } from "@parley/client";
import { useStatus } from "@parley/client/react";
import { useEffect, useState } from "preact/hooks";
import { Chat } from "./chat";
import { ChatList } from "./chatlist";

export interface AppProps {
  client: Client;
  warning: string | undefined;
  onSignOut: (everywhere?: boolean) => void;
  onDelete: (confirmed: string) => Promise<void>;
}

/** The chat that the address names. */
function useRoute(): string | undefined {
  const read = () => location.hash.match(/^#\/(chat_\w+)$/)?.[1];
  const [chatId, setChatId] = useState(read);
  useEffect(() => {
    const changed = () => setChatId(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return chatId;
}

export function App({ client, warning, onSignOut, onDelete }: AppProps) {
  const chatId = useRoute();
  return (
    <main class={chatId ? "app reading" : "app"}>
      <Connection client={client} onSignOut={onSignOut} />
      {warning && <p class="warning">{warning}</p>}
      <ChatList client={client} open={chatId} onSignOut={onSignOut} onDelete={onDelete} />
      {chatId ? (
        <Chat key={chatId} client={client} chatId={chatId} />
      ) : (
        <section class="nothing" aria-label="No chat">
          <p>Choose a chat, or begin one.</p>
          <a href="/docs">Documents</a>
        </section>
      )}
    </main>
  );
}

const reasons: Record<string, string> = {
  SESSION_REVOKED: "Your session was ended elsewhere.",
  REPLACED: "Another device of yours has taken this one's place.",
  STORAGE: "This browser cannot store the chats.",
  INTERNAL: "This page has failed.",
  TAKEN_OVER: "Another tab has taken over your chats.",
};

/** Whether the browser has a network: a stream may seem open for a while after it has gone. */
function useOnline(): boolean {
  const [online, setOnline] = useState(navigator.onLine);
  useEffect(() => {
    const changed = () => setOnline(navigator.onLine);
    changed();
    addEventListener("online", changed);
    addEventListener("offline", changed);
    return () => {
      removeEventListener("online", changed);
      removeEventListener("offline", changed);
    };
  }, []);
  return online;
}

/** How the connection is, when there is something to say. */
function Connection({ client, onSignOut }: { client: Client; onSignOut: () => void }) {
  const { connection, polling, why } = useStatus(client);
  const away = !useOnline() || connection === "connecting";
  const [late, setLate] = useState(false); // a short wait is not worth a word
  useEffect(() => {
    setLate(false);
    if (!away) return;
    const timer = setTimeout(() => setLate(true), 1000);
    return () => clearTimeout(timer);
  }, [away]);
  return (
    <div class="connection" role="status" data-connection={connection}>
      {connection !== "stopped" && away && late && <p>No connection. What you write is kept and sent later.</p>}
      {connection === "live" && polling && !away && (
        <p>Your network holds live messages back: they come up to 15 seconds late.</p>
      )}
      {connection === "stopped" && (
        <p>
          {reasons[why ?? ""] ?? "You are signed out."} <button onClick={() => client.resume()}>Try again</button>{" "}
          <button onClick={() => onSignOut()}>Sign in again</button>
        </p>
      )}
    </div>
  );
}
