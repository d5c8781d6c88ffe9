// The user's chats, last changed first.
import type { Client } from "@parley/client";
import { useRefused, useStatus } from "@parley/client/react";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Account } from "./account";
import { useChatList } from "./chats";
import { isMuted, titleOf } from "./format";
import { Avatar, Icon } from "./icons";
import { Invitations } from "./invitations";
import { LeftOvers } from "./left";
import { NewChat } from "./newchat";
import { useNames } from "./people";
import { Rows } from "./rows";
import { unreadOf, useVisible } from "./unread";

interface Props {
  client: Client;
  open: string | undefined;
  onSignOut: (everywhere?: boolean) => void;
  onDelete: (confirmed: string) => Promise<void>;
}

export function ChatList({ client, open, onSignOut, onDelete }: Props) {
  const all = useChatList(client);
  const { connection } = useStatus(client);
  const [search, setSearch] = useState("");
  const [archived, setArchived] = useState(false);
  const [making, setMaking] = useState(false);
  const [account, setAccount] = useState(false);
  const people = useNames(client);
  const me = client.userId;
  const wanted = search.trim().toLocaleLowerCase();
  const { name } = people;
  const found = wanted && name; // names are looked for only then
  const shown = useMemo(
    () =>
      all.filter((c) =>
        found ? titleOf(c, me, found).toLocaleLowerCase().includes(wanted) : !!c.state?.archived === archived,
      ),
    [all, wanted, found, archived],
  );
  const reading = useVisible() ? open : undefined;
  const away = useMemo(() => all.filter((c) => c.state?.archived).length, [all]);
  const unread = useMemo(
    () => all.filter((c) => unreadOf(client, c, reading) > 0n && !isMuted(c) && !c.state?.archived).length,
    [all, reading],
  );
  const refused = useRefused(client);
  const failed = useMemo(() => new Set(refused.map((r) => r.entry.chatId)), [refused]);
  useEffect(() => {
    document.title = unread ? `(${unread}) Parley` : "Parley";
  }, [unread]);
  return (
    <nav class="chats" aria-label="Chats">
      <header>
        <h1>
          <Avatar id={me} name={people.name(me)} /> <span dir="auto">{people.name(me)}</span>
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
        dir="auto"
        aria-label="Search chats by name"
        placeholder="Search"
        value={search}
        onInput={(e) => setSearch(e.currentTarget.value)}
      />
      <Invitations client={client} />
      <LeftOvers client={client} open={open} />
      <Rows
        client={client}
        chats={shown}
        people={people}
        failed={failed}
        open={open}
        reading={reading}
        subject={`${archived} ${wanted}`}
      />
      {shown.length === 0 && (
        <p class="empty">{wanted ? "No chat has this name." : connection === "live" ? none(archived) : "Loading…"}</p>
      )}
      {away > 0 && !wanted && (
        <button class="quiet" aria-pressed={archived} onClick={() => setArchived(!archived)}>
          {archived ? "Back to chats" : `Archived (${away})`}
        </button>
      )}
      {making && <NewChat client={client} onClose={() => setMaking(false)} />}
      {account && (
        <Account client={client} onSignOut={onSignOut} onDelete={onDelete} onClose={() => setAccount(false)} />
      )}
    </nav>
  );
}

const none = (archived: boolean) =>
  archived ? "Nothing is archived." : "No chats yet. Begin one with the plus above.";
