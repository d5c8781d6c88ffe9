// Which messages of a chat are on the page: never more than a few screens of them, however long the chat is.
import type { ChatView, Client } from "@parley/client";
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const most = 150n; // messages on the page
const step = 50n;
const near = 800; // pixels from the edge at which more are shown
const kept = 1000; // messages that this browser keeps of a chat once somebody is back at the end
const bottom = 60; // pixels from the end that count as the end

export interface Window {
  scroller: RefObject<HTMLDivElement | null>;
  onScroll: () => void;
  /** Sequences of the first and the last message to be shown. */
  from: bigint;
  to: bigint;
  /** The last message is shown, and the page stays at it. */
  atEnd: boolean;
  toEnd: () => void;
}

const max = (a: bigint, b: bigint) => (a > b ? a : b);
const min = (a: bigint, b: bigint) => (a < b ? a : b);

/** Sequences have no gaps, so a window is two of them. */
export function useWindow(client: Client, chat: ChatView, rows: number): Window {
  const scroller = useRef<HTMLDivElement | null>(null);
  const [end, setEnd] = useState<bigint>(); // undefined: the last one, whatever it is
  const [stuck, setStuck] = useState(true); // at the end
  const anchor = useRef<{ key: string; top: number } | undefined>(undefined);
  const asked = useRef<bigint | undefined>(undefined);
  // Functions below outlive many renders: they must not hold the messages of the one that made them.
  const { chatId, hasOlder, first: complete } = chat;
  const count = chat.messages.length;
  const last = chat.messages.at(-1)?.sequence ?? 0n;
  const first = chat.messages[0]?.sequence ?? 1n;
  // What was shown may have been dropped in another tab.
  const to = end === undefined ? last : max(end, min(last, first + step));
  const from = max(first, to - (end === undefined && stuck ? step * 2n : most) + 1n);

  /** Remembers where a message is that stays on the page, to have it there afterwards. */
  const keep = (box: HTMLElement) => {
    const edge = box.getBoundingClientRect().top;
    for (const row of box.querySelectorAll<HTMLElement>("[data-key]")) {
      const { top, bottom: low } = row.getBoundingClientRect();
      if (low > edge) {
        anchor.current = { key: row.dataset.key!, top };
        return;
      }
    }
  };
  const onScroll = () => {
    const box = scroller.current;
    if (!box) return; // a chat that was left may still scroll
    const below = box.scrollHeight - box.scrollTop - box.clientHeight;
    const atEnd = end === undefined && below < bottom;
    if (atEnd !== stuck) {
      if (!atEnd) keep(box);
      setStuck(atEnd);
    }
    if (box.scrollTop < near && from > first && !atEnd) {
      keep(box);
      const start = max(first, from - step);
      setEnd(start + most - 1n < last ? start + most - 1n : undefined);
    } else if (below < near && end !== undefined) {
      keep(box);
      const next = min(last, end + step);
      setEnd(next < last ? next : undefined);
    }
    if (box.scrollTop < near && from - first < step && hasOlder && asked.current !== complete) {
      asked.current = complete;
      client.loadOlder(chatId);
    }
  };
  useLayoutEffect(() => {
    const box = scroller.current;
    if (!box) return;
    if (stuck) {
      box.scrollTop = box.scrollHeight;
    } else if (anchor.current) {
      const { key, top } = anchor.current;
      const row = box.querySelector(`[data-key="${CSS.escape(key)}"]`);
      if (row) box.scrollTop += row.getBoundingClientRect().top - top;
    }
    anchor.current = undefined;
  }, [from, to, rows, stuck]);
  useEffect(onScroll, [complete, chat.loaded, from]); // what came may not fill the page
  useEffect(() => {
    const box = scroller.current;
    if (!box) return;
    const watch = new ResizeObserver(() => {
      if (stuck) box.scrollTop = box.scrollHeight;
    });
    watch.observe(box);
    return () => watch.disconnect();
  }, [stuck]);
  const atEnd = end === undefined && stuck;
  const trim = useRef(() => {});
  trim.current = () => {
    if (count <= 2 * kept || client.status.connection !== "live") return; // they could not be read again
    asked.current = undefined;
    client.trim(chatId, kept);
  };
  useEffect(() => {
    if (atEnd) trim.current();
  }, [atEnd]);
  useEffect(() => () => trim.current(), []);
  const toEnd = () => {
    setEnd(undefined);
    setStuck(true);
  };
  return { scroller, onScroll, from, to, atEnd, toEnd };
}
