// The user's chats, last changed first.
import type { ChatView, Client } from "@parley/client";
import { useChats, useStatus } from "@parley/client/react";
import { useRef, useState } from "preact/hooks";
import { Account } from "./account";
import { isMuted, ms, otherOf, recently, titleOf } from "./format";
import { Avatar, Icon } from "./icons";
import { NewChat } from "./newchat";
import { type Names, useNames } from "./people";

interface Props {
  client: Client;
  open: string | undefined;
  onSignOut: (everywhere?: boolean) => void;
}

export function ChatList({ client, open, onSignOut }: Props) {
  const all = useChats(client);
  const { connection } = useStatus(client);
  const [search, setSearch] = useState("");
  const [archived, setArchived] = useState(false);
  const [making, setMaking] = useState(false);
  const [account, setAccount] = useState(false);
  const people = useNames(client);
  const me = client.userId;
  const wanted = search.trim().toLocaleLowerCase();
  const away = all.filter((c) => c.state?.archived).length;
  const shown = all.filter((c) =>
    wanted ? titleOf(c, me, people.name).toLocaleLowerCase().includes(wanted) : !!c.state?.archived === archived,
  );
  return (
    <nav class="chats" aria-label="Chats">
      <header>
        <h1>
          <Avatar id={me} name={people.name(me)} /> {people.name(me)}
        </h1>
        <button class="round" aria-label="Your account" title="Your account" onClick={() => setAccount(true)}>
          <Icon name="person" />
        </button>
        <button class="round" aria-label="New chat" title="New chat" onClick={() => setMaking(true)}>
          <Icon name="plus" />
        </button>
        <button class="round" aria-label="Sign out" title="Sign out" onClick={() => onSignOut()}>
          <Icon name="out" />
        </button>
      </header>
      <input
        type="search"
        aria-label="Search chats by name"
        placeholder="Search"
        value={search}
        onInput={(e) => setSearch(e.currentTarget.value)}
      />
      <Rows chats={shown} me={me} people={people} open={open} />
      {shown.length === 0 && (
        <p class="empty">{wanted ? "No chat has this name." : connection === "live" ? none(archived) : "Loading…"}</p>
      )}
      {away > 0 && !wanted && (
        <button class="quiet" aria-pressed={archived} onClick={() => setArchived(!archived)}>
          {archived ? "Back to chats" : `Archived (${away})`}
        </button>
      )}
      {making && <NewChat client={client} onClose={() => setMaking(false)} />}
      {account && <Account client={client} onSignOut={onSignOut} onClose={() => setAccount(false)} />}
    </nav>
  );
}

const none = (archived: boolean) =>
  archived ? "Nothing is archived." : "No chats yet. Begin one with the plus above.";

interface RowsProps {
  chats: readonly ChatView[];
  me: string;
  people: Names;
  open: string | undefined;
}

function Rows({ chats, me, people, open }: RowsProps) {
  const list = useRef<HTMLUListElement>(null);
  const move = (e: KeyboardEvent) => {
    const step = e.key === "ArrowDown" ? 1 : e.key === "ArrowUp" ? -1 : 0;
    if (!step) return;
    const links = [...list.current!.querySelectorAll("a")];
    const next = links[links.indexOf(document.activeElement as HTMLAnchorElement) + step];
    if (next) next.focus();
    e.preventDefault();
  };
  return (
    <ul ref={list} onKeyDown={move}>
      {chats.map((c) => (
        <Row key={c.chatId} chat={c} me={me} people={people} current={c.chatId === open} />
      ))}
    </ul>
  );
}

interface RowProps {
  chat: ChatView;
  me: string;
  people: Names;
  current: boolean;
}

function Row({ chat, me, people, current }: RowProps) {
  const title = titleOf(chat, me, people.name);
  const last = chat.head?.lastMessage;
  const waiting = chat.outbox.at(-1);
  const sender = !last ? "" : last.senderId === me ? "You: " : chat.chat?.name ? `${people.name(last.senderId)}: ` : "";
  const at = waiting?.createdAt ?? (ms(last?.createdAt) || ms(chat.head?.changedAt));
  return (
    <li>
      <a href={`#/${chat.chatId}`} aria-current={current ? "page" : undefined} class={chat.unread > 0n ? "unread" : ""}>
        <Avatar id={otherOf(chat, me) ?? chat.chatId} name={title} />
        <span class="name">
          {title}
          {isMuted(chat) && (
            <span class="muted">
              <Icon name="muted" />
              <span class="spoken"> muted</span>
            </span>
          )}
        </span>
        <time>{at ? recently(at) : ""}</time>
        <span class="preview">
          {waiting ? `You: ${waiting.content}` : last ? sender + last.text : "No messages yet"}
        </span>
        {chat.unread > 0n && (
          <span class="count">
            {chat.unread > 99n ? "99+" : String(chat.unread)}
            <span class="spoken"> unread</span>
          </span>
        )}
      </a>
    </li>
  );
}
