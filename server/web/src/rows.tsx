// The rows of the list of chats. Only those around the ones in sight are on the page.
import type { ChatView } from "@parley/client";
import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { isMuted, ms, otherOf, recently, titleOf } from "./format";
import { Avatar, Icon } from "./icons";
import type { Names } from "./people";
import { useRowWindow } from "./rowwindow";

const page = 10; // rows that a key goes up or down by

interface RowsProps {
  chats: readonly ChatView[];
  me: string;
  people: Names;
  open: string | undefined;
  /** What the chats were chosen by. */
  subject: string;
}

export function Rows({ chats, me, people, open, subject }: RowsProps) {
  const ids = useMemo(() => chats.map((c) => c.chatId), [chats]);
  const view = useRowWindow(ids, subject);
  const keys = useRowKeys(ids, open);
  const today = new Date().setHours(0, 0, 0, 0);
  const shown = new Set(ids.slice(view.from, view.to).map((_, i) => view.from + i));
  if (ids.length > 0) shown.add(keys.stop); // Tab leads to it from anywhere
  const indexes = [...shown].sort((a, b) => a - b);
  return (
    <div ref={view.scroller} class="rows" onScroll={view.onScroll}>
      <ul
        ref={keys.list}
        role="list"
        style={{ height: `calc(${chats.length} * var(--row))` }}
        onKeyDown={keys.onKeyDown}
        onFocusIn={keys.onFocusIn}
      >
        {indexes.map((i) => {
          const chat = chats[i]!;
          const sender = chat.head?.lastMessage?.senderId;
          return (
            <Row
              key={chat.chatId}
              chat={chat}
              me={me}
              title={titleOf(chat, me, people.name)}
              sender={sender && sender !== me && chat.chat?.name ? people.name(sender) : ""}
              muted={isMuted(chat)}
              today={today}
              current={chat.chatId === open}
              stop={i === keys.stop}
              index={i}
              count={chats.length}
            />
          );
        })}
      </ul>
    </div>
  );
}

/** One row takes the focus by Tab; other keys move on from it. Rows that change places keep the focus. */
function useRowKeys(ids: readonly string[], open: string | undefined) {
  const list = useRef<HTMLUListElement>(null);
  const [chosen, choose] = useState(open);
  const next = useRef<string | undefined>(undefined);
  useEffect(() => {
    if (open) choose(open);
  }, [open]);
  const stop = Math.max(0, ids.indexOf(chosen ?? ""));
  const links = () => list.current?.querySelectorAll<HTMLElement>("[data-chat]") ?? [];
  const focused = [...links()].find((a) => a === document.activeElement)?.dataset.chat;
  const place = useRef(stop);
  useLayoutEffect(() => {
    const moved = focused !== undefined && document.activeElement === document.body; // a node that moves loses the focus
    const id = next.current ?? (moved ? (ids.includes(focused) ? focused : ids[Math.min(place.current, ids.length - 1)]) : "");
    if (id) [...links()].find((a) => a.dataset.chat === id)?.focus({ preventScroll: moved && !next.current });
    next.current = undefined;
    place.current = stop;
  });
  const onKeyDown = (e: KeyboardEvent) => {
    const last = ids.length - 1;
    const to = {
      ArrowDown: stop + 1,
      ArrowUp: stop - 1,
      PageDown: Math.min(stop + page, last),
      PageUp: Math.max(stop - page, 0),
      Home: 0,
      End: last,
    }[e.key];
    if (to === undefined || e.ctrlKey || e.altKey || e.metaKey) return;
    e.preventDefault();
    if (!ids[to] || to === stop) return;
    next.current = ids[to];
    choose(ids[to]);
  };
  const onFocusIn = (e: FocusEvent) => {
    const id = (e.target as HTMLElement).dataset.chat;
    if (id) choose(id);
  };
  return { list, stop, onKeyDown, onFocusIn };
}

interface RowProps {
  chat: ChatView;
  me: string;
  title: string;
  /** Of the last message, if that needs to be said. */
  sender: string;
  muted: boolean;
  /** When this day began: times are shown by it. */
  today: number;
  current: boolean;
  /** Tab leads to it. */
  stop: boolean;
  index: number;
  count: number;
}

const Row = memo(({ chat, me, title, sender, muted, current, stop, index, count }: RowProps) => {
  const last = chat.head?.lastMessage;
  const waiting = chat.outbox.at(-1);
  const by = waiting || last?.senderId === me ? "You: " : sender && `${sender}: `;
  const at = waiting?.createdAt ?? (ms(last?.createdAt) || ms(chat.head?.changedAt));
  return (
    <li aria-setsize={count} aria-posinset={index + 1} style={{ top: `calc(${index} * var(--row))` }}>
      <a
        href={`#/${chat.chatId}`}
        data-chat={chat.chatId}
        tabIndex={stop ? 0 : -1}
        aria-current={current ? "page" : undefined}
        class={chat.unread > 0n ? "unread" : ""}
      >
        <Avatar id={otherOf(chat, me) ?? chat.chatId} name={title} />
        <span class="name">
          {title}
          {muted && (
            <span class="muted">
              <Icon name="muted" />
              <span class="spoken"> muted</span>
            </span>
          )}
        </span>
        <time>{at ? recently(at) : ""}</time>
        <span class="preview">{waiting ? by + waiting.content : last ? by + last.text : "No messages yet"}</span>
        {chat.unread > 0n && (
          <span class="count">
            {chat.unread > 99n ? "99+" : String(chat.unread)}
            <span class="spoken"> unread</span>
          </span>
        )}
      </a>
    </li>
  );
});
