// What is unread, with what the user has read but the server has not confirmed.
import type { ChatView, Client } from "@parley/client";
import { useRead } from "@parley/client/react";
import { useEffect, useState } from "preact/hooks";

const marks = new WeakMap<Client, Map<string, bigint>>(); // sequences by chat, until they are confirmed

function marksOf(client: Client): Map<string, bigint> {
  const of = marks.get(client) ?? new Map<string, bigint>();
  marks.set(client, of);
  return of;
}

/** Whether the page is looked at. */
export function useVisible(): boolean {
  const read = () => document.visibilityState === "visible";
  const [visible, setVisible] = useState(read);
  useEffect(() => {
    const changed = () => setVisible(read);
    changed();
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  }, []);
  return visible;
}

/** Reads a chat while it is shown and the page is looked at. */
export function useReading(client: Client, chat: ChatView | undefined) {
  useRead(client, chat);
  const visible = useVisible();
  const chatId = chat?.chatId;
  const last = chat?.head?.sequence;
  useEffect(() => {
    if (chatId && last && visible) marksOf(client).set(chatId, last);
  }, [client, chatId, last, visible]);
}

/** How many messages of a chat are unread; none of the chat that is being read. */
export function unreadOf(client: Client, chat: ChatView, reading: string | undefined): bigint {
  const { chatId, unread, head, state } = chat;
  if (unread === 0n || chatId === reading) return 0n;
  const mark = marksOf(client).get(chatId) ?? 0n;
  if (mark <= (state?.readSequence ?? 0n)) {
    marksOf(client).delete(chatId);
    return unread;
  }
  const left = (head?.sequence ?? 0n) - mark;
  return left > 0n ? left : 0n;
}
