// Drafts: texts that are written and not sent, by user and chat. They are in localStorage, so that they survive a
// reload. Of two tabs with one chat the last to write wins.
import type { Client } from "@parley/client";
import { useEffect, useState } from "preact/hooks";

export interface Draft {
  chatId: string;
  /** Of the chat, which may be gone when the draft is shown. */
  title: string;
  text: string;
  /** Milliseconds since 1970. */
  at: number;
}

const prefix = "parley/draft/";
const interval = 300; // between writes
const maxDrafts = 100; // of a browser
const maxDraft = 65_536; // characters, four times the longest message
const maxTotal = 1_000_000; // characters of all drafts of a browser
const unsaved = new Map<string, Draft>(); // by key, until the next save
const sending = new Map<string, Map<string, string>>(); // by key: messages by id that the client has not stored yet
const known = new Map<string, string>(); // by key: the text that this tab has read or stored last
const unstored = new Map<string, Draft>(); // that the browser does not store
const listeners = new Set<() => void>();
let timer: ReturnType<typeof setTimeout> | undefined;

const keysOf = (userId: string) => `${prefix}${userId}/`; // no id has a slash

function stored(key: string): Draft | undefined {
  try {
    const text = localStorage.getItem(key);
    return text ? (JSON.parse(text) as Draft) : undefined;
  } catch {
    return undefined; // there is no storage, or it holds something else
  }
}

const read = (key: string) => unsaved.get(key) ?? unstored.get(key) ?? stored(key);

/** The draft of a chat, which is about to be shown. */
export function draftOf(userId: string, chatId: string): string {
  const key = keysOf(userId) + chatId;
  const text = read(key)?.text ?? "";
  if (!unsaved.has(key)) known.set(key, text);
  return text;
}

/** Keeps a draft, stored within 300 ms or now; without a text, drops it. */
export function keepDraft(userId: string, chatId: string, title: string, text: string, now = false) {
  unsaved.set(keysOf(userId) + chatId, { chatId, title, text: text.trim() && text, at: Date.now() });
  if (now) save();
  else timer ??= setTimeout(save, interval);
}

/** Drops a draft, whichever tab has written it. */
export function dropDraft(userId: string, chatId: string) {
  const key = keysOf(userId) + chatId;
  known.set(key, stored(key)?.text ?? "");
  keepDraft(userId, chatId, "", "", true);
}

/** Keeps a message that was sent in place of the draft until the client has stored it. */
export function keepUntilStored(client: Client, chatId: string, title: string, id: string, text: string) {
  const key = keysOf(client.userId) + chatId;
  const messages = sending.get(key) ?? new Map<string, string>();
  sending.set(key, messages.set(id, text));
  keepDraft(client.userId, chatId, title, "");
  const look = () => {
    if (!isStored(client, chatId, id)) return;
    stop();
    messages.delete(id);
    if (messages.size === 0) sending.delete(key);
    save();
  };
  const stop = client.subscribe(look);
  look();
}

const isStored = (client: Client, chatId: string, id: string) =>
  client.outbox().some((u) => u.clientMessageId === id) ||
  client.refused().some((r) => r.entry.clientMessageId === id) ||
  client.chat(chatId)?.messages.some((m) => m.clientMessageId === id);

/** A draft behind the messages that were sent in its place and are not stored. */
const textOf = (key: string, { text }: Draft) =>
  unsaved.has(key) ? [...(sending.get(key)?.values() ?? []), text].filter(Boolean).join("\n") : text;

/** Makes drafts of the messages that a client did not store before it ended. */
export function keepUnstored(userId: string) {
  for (const key of [...sending.keys()].filter((k) => k.startsWith(keysOf(userId)))) {
    const draft = unsaved.get(key);
    if (draft) unsaved.set(key, { ...draft, text: textOf(key, draft) });
    sending.delete(key);
  }
  save();
}

function save() {
  clearTimeout(timer);
  timer = undefined;
  for (const [key, draft] of unsaved) {
    const messages = sending.get(key);
    const text = textOf(key, draft);
    unstored.delete(key);
    // What another tab has written meanwhile is not dropped for a text that was sent here.
    const elsewhere = !draft.text && (stored(key)?.text ?? "") !== (known.get(key) ?? "");
    try {
      if (elsewhere) continue;
      known.set(key, text);
      if (text.length > maxDraft) unstored.set(key, draft);
      else if (text) localStorage.setItem(key, JSON.stringify({ ...draft, text }));
      else localStorage.removeItem(key);
    } catch {
      unstored.set(key, draft); // no storage, or no room in it
    } finally {
      if (!messages) unsaved.delete(key);
    }
  }
  prune();
  for (const tell of [...listeners]) tell();
}

function storedKeys(under: string): string[] {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(under));
  } catch {
    return [];
  }
}

/** Drops the oldest drafts beyond the bounds. */
function prune() {
  const drafts = storedKeys(prefix).map((key) => ({ key, size: localStorage.getItem(key)?.length ?? 0 }));
  let total = drafts.reduce((sum, d) => sum + d.size, 0);
  if (drafts.length <= maxDrafts && total <= maxTotal) return;
  const aged = drafts.map((d) => ({ ...d, at: stored(d.key)?.at ?? 0 })).sort((a, b) => a.at - b.at);
  for (let left = aged.length; left > maxDrafts || total > maxTotal; left--) {
    const { key, size } = aged[aged.length - left]!;
    localStorage.removeItem(key);
    total -= size;
  }
}

addEventListener("pagehide", save);
document.addEventListener("visibilitychange", save); // a phone may end a hidden page without more

/** The drafts of a user in all chats. */
export function draftsOf(userId: string): Draft[] {
  const under = keysOf(userId);
  const keys = new Set([...storedKeys(under), ...unstored.keys(), ...unsaved.keys()]);
  return [...keys].flatMap((key) => {
    const draft = key.startsWith(under) ? read(key) : undefined;
    const text = draft && textOf(key, draft);
    return text ? [{ ...draft, text }] : [];
  });
}

/** The drafts of a user, kept up to date. */
export function useDrafts(userId: string): Draft[] {
  const [drafts, show] = useState(() => draftsOf(userId));
  useEffect(() => {
    const changed = () => show(draftsOf(userId));
    const elsewhere = (e: StorageEvent) => {
      if (e.key?.startsWith(prefix)) changed();
    };
    listeners.add(changed);
    addEventListener("storage", elsewhere);
    changed();
    return () => {
      listeners.delete(changed);
      removeEventListener("storage", elsewhere);
    };
  }, [userId]);
  return drafts;
}

/** Drops the drafts of a user who signs out. */
export function forgetDrafts(userId: string) {
  const under = keysOf(userId);
  for (const drafts of [unsaved, unstored, sending]) {
    for (const key of [...drafts.keys()]) if (key.startsWith(under)) drafts.delete(key);
  }
  for (const key of storedKeys(under)) localStorage.removeItem(key);
}
