// The rows of the list of chats. Only those around the ones in sight are on the page.
import { ChatType } from "#gen/parley/chat/v1/chat_pb.js";
import type { ChatView, Client } from "@parley/client";
import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { beginning, isMuted, ms, otherOf, recently, titleOf } from "./format";
import { Avatar, Icon } from "./icons";
import type { Names } from "./people";
import { useRowWindow } from "./rowwindow";
import { unreadOf } from "./unread";

const page = 10; // rows that a key goes up or down by

interface RowsProps {
  client: Client;
  chats: readonly ChatView[];
  people: Names;
  /** The chats with a message that was refused. */
  failed: ReadonlySet<string>;
  open: string | undefined;
  /** The open chat, while the page is looked at. */
  reading: string | undefined;
  /** What the chats were chosen by. */
  subject: string;
}

export function Rows({ client, chats, people, failed, open, reading, subject }: RowsProps) {
  const me = client.userId;
  const ids = useIds(chats);
  const view = useRowWindow(ids, subject);
  const keys = useRowKeys(ids, open);
  const today = new Date().setHours(0, 0, 0, 0);
  const shown = new Set(ids.slice(view.from, view.to).map((_, i) => view.from + i));
  if (ids.length > 0) shown.add(keys.stop); // Tab leads to it from anywhere
  const indexes = [...shown].sort((a, b) => a - b);
  const titles = new Map(indexes.map((i) => [ids[i]!, titleOf(chats[i]!, me, people.name)]));
  const twins = useTwins(titles);
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
          const title = titles.get(chat.chatId)!;
          return (
            <Row
              key={chat.chatId}
              chat={chat}
              me={me}
              title={title}
              mark={twins.has(title) ? markOf(chat, me, people) : ""}
              sender={sender && sender !== me && chat.chat?.name ? firstWord(people.name(sender)) : ""}
              unread={unreadOf(client, chat, reading)}
              muted={isMuted(chat)}
              failed={failed.has(chat.chatId)}
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

/** The ids of the chats in order, the same list until the order changes: a new one has the page laid out. */
function useIds(chats: readonly ChatView[]): readonly string[] {
  const ids = useRef<readonly string[]>([]);
  return useMemo(() => {
    const same = chats.length === ids.current.length && chats.every((c, i) => c.chatId === ids.current[i]);
    if (!same) ids.current = chats.map((c) => c.chatId);
    return ids.current;
  }, [chats]);
}

const firstWord = (name: string) => name.trim().split(/\s/)[0] || name;

/** The titles that more than one chat has, of those that are or were on the page. */
function useTwins(titles: ReadonlyMap<string, string>): ReadonlySet<string> {
  const [owners] = useState(() => new Map<string, string>());
  const [twins] = useState(() => new Set<string>());
  for (const [chatId, title] of titles) {
    const owner = owners.get(title) ?? chatId;
    owners.set(title, owner);
    if (owner !== chatId) twins.add(title);
  }
  return twins;
}

/** What no other chat of the same title has. */
function markOf(view: ChatView, me: string, people: Names): string {
  const { chat, chatId } = view;
  if (chat?.type !== ChatType.GROUP) return people.mark(otherOf(view, me) ?? "");
  return `#${chatId.slice(-4)}`;
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
    const lost = focused !== undefined && document.activeElement === document.body; // as each node that moves
    const neighbour = ids[Math.min(place.current, ids.length - 1)];
    const id = next.current ?? (lost ? (ids.includes(focused) ? focused : neighbour) : undefined);
    const link = [...links()].find((a) => a.dataset.chat === id);
    link?.focus({ preventScroll: next.current === undefined });
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
  /** Tells it from another chat with this title; empty if there is none. */
  mark: string;
  unread: bigint;
  /** Of the last message, if that needs to be said. */
  sender: string;
  muted: boolean;
  /** The server has refused a message. */
  failed: boolean;
  /** When this day began: times are shown by it. */
  today: number;
  current: boolean;
  /** Tab leads to it. */
  stop: boolean;
  index: number;
  count: number;
}

const Row = memo((props: RowProps) => {
  const { chat, me, title, mark, unread, sender, muted, failed, current, stop, index, count } = props;
  const last = chat.head?.lastMessage;
  const waiting = chat.outbox.at(-1);
  const text = waiting?.content ?? last?.text;
  const by = waiting || last?.senderId === me ? "You" : sender;
  const at = waiting?.createdAt ?? (ms(last?.createdAt) || ms(chat.head?.changedAt));
  return (
    <li aria-setsize={count} aria-posinset={index + 1} style={{ top: `calc(${index} * var(--row))` }}>
      <a
        href={`#/${chat.chatId}`}
        data-chat={chat.chatId}
        tabIndex={stop ? 0 : -1}
        title={mark ? `${title} ${mark}` : undefined}
        aria-current={current ? "page" : undefined}
        class={unread > 0n ? "unread" : ""}
      >
        <Avatar id={otherOf(chat, me) ?? chat.chatId} name={title} />
        <span class="name">
          <span dir="auto">{title}</span>
          {mark && <small dir="auto">{mark}</small>}
          {muted && (
            <span class="muted">
              <Icon name="muted" />
              <span class="spoken"> muted</span>
            </span>
          )}
        </span>
        <time>{at ? recently(at) : ""}</time>
        <span class="preview">
          {failed && (
            <span class="failed">
              <Icon name="failed" />
              <span class="spoken">A message was not sent. </span>
            </span>
          )}
          {text !== undefined && by && (
            <span class="by">
              <bdi>{by}</bdi>
              <span>:&nbsp;</span>
            </span>
          )}
          <span dir="auto">{text === undefined ? "No messages yet" : beginning(text)}</span>
        </span>
        {unread > 0n && (
          <span class="count">
            {unread > 99n ? "99+" : String(unread)}
            <span class="spoken"> unread</span>
          </span>
        )}
      </a>
    </li>
  );
});
