// Hooks for React 18 and later, and for Preact by its compatible layer.
import { useCallback, useEffect, useSyncExternalStore } from "react";
import type { Profile } from "#gen/parley/user/v1/user_pb.js";
import type { LeftChat, OutboxEntry, RefusedMessage } from "./device/types.js";
import type { ChatView } from "./device/view.js";
import type { Client } from "./client.js";
import type { Status } from "./runner.js";

function useClient<T>(client: Client, read: () => T): T {
  const subscribe = useCallback((listener: () => void) => client.subscribe(listener), [client]);
  return useSyncExternalStore(subscribe, read, read);
}

/** The user's chats, last changed first. */
export const useChats = (client: Client): readonly ChatView[] => useClient(client, () => client.chats());

/** The messages that the server has not confirmed, of all chats. */
export const useOutbox = (client: Client): readonly OutboxEntry[] => useClient(client, () => client.outbox());

/** The messages that are not sent any more, until they are dismissed or sent again. */
export const useRefused = (client: Client): readonly RefusedMessage[] => useClient(client, () => client.refused());

/** The chats that were the user's lately. */
export const useLeftChats = (client: Client): readonly LeftChat[] => useClient(client, () => client.leftChats());

/** How the connection is. */
export const useStatus = (client: Client): Status => useClient(client, () => client.status);

/** Profiles by user id, fetched and kept up to date while they are asked for; undefined of whom there is none yet. */
export function useProfiles({ profiles }: Client): (userId: string) => Profile | undefined {
  const subscribe = useCallback((listener: () => void) => profiles.subscribe(listener), [profiles]);
  const read = () => profiles.revision;
  const revision = useSyncExternalStore(subscribe, read, read);
  return useCallback((userId) => profiles.get(userId), [profiles, revision]);
}

/** One chat, with its messages and members loaded while it is shown; undefined if it is not one of the user's. */
export function useChat(client: Client, chatId: string | undefined): ChatView | undefined {
  useEffect(() => {
    if (chatId) client.open(chatId);
  }, [client, chatId]);
  return useClient(client, () => (chatId ? client.chat(chatId) : undefined));
}

/** Says that a chat is read up to its last message, while it is shown and the page is looked at. */
export function useRead(client: Client, chat: ChatView | undefined) {
  const chatId = chat?.chatId;
  const unread = chat?.unread ?? 0n;
  const last = chat?.head?.sequence ?? 0n;
  useEffect(() => {
    const mark = () => {
      if (chatId && unread > 0n && document.visibilityState === "visible") client.markRead(chatId, last);
    };
    mark();
    document.addEventListener("visibilitychange", mark);
    return () => document.removeEventListener("visibilitychange", mark);
  }, [client, chatId, unread, last]);
}
