// The open chat.
import { ChatType } from "#gen/parley/chat/v1/chat_pb.js";
import type { Client } from "@parley/client";
import { useChat, useRefused, useStatus } from "@parley/client/react";
import { useMemo, useRef, useState } from "preact/hooks";
import { Composer } from "./composer";
import { Details } from "./details";
import { otherOf, titleOf } from "./format";
import { Avatar, Icon } from "./icons";
import { LeftChat } from "./left";
import { Messages } from "./messages";
import { useNames } from "./people";
import { useReading } from "./unread";

interface Props {
  client: Client;
  chatId: string;
}

export function Chat({ client, chatId }: Props) {
  const { connection } = useStatus(client);
  // What is read of a chat before the first list of chats came is read again after it.
  const listed = connection === "live" || client.chat(chatId) !== undefined;
  const chat = useChat(client, listed ? chatId : undefined);
  const refused = useRefused(client);
  const failed = useMemo(() => refused.filter((r) => r.entry.chatId === chatId), [refused, chatId]);
  const [details, setDetails] = useState(false);
  const people = useNames(client);
  const down = useRef<() => void>(() => {});
  useReading(client, chat);
  if (!chat?.chat) return <LeftChat client={client} chatId={chatId} />;
  const title = titleOf(chat, client.userId, people.name);
  const group = chat.chat.type === ChatType.GROUP;
  const other = group ? undefined : otherOf(chat, client.userId);
  return (
    <section class="chat" aria-label={title}>
      <header>
        <a class="round back" href="#" aria-label="Back to the chats">
          <Icon name="back" />
        </a>
        <Avatar id={other ?? chatId} name={title} />
        <h1>
          <span dir="auto">{title}</span>
          <small>{group ? `${chat.chat.memberCount} members` : other && people.mark(other)}</small>
        </h1>
        <button class="round" aria-label={`About ${title}`} title={`About ${title}`} onClick={() => setDetails(true)}>
          <Icon name="more" />
        </button>
      </header>
      <Messages
        client={client}
        chat={chat}
        group={group}
        name={people.name}
        failed={failed}
        down={down}
      />
      <Composer
        client={client}
        chatId={chatId}
        title={title}
        onSent={() => down.current()}
      />
      {details && <Details client={client} chat={chat} group={group} onClose={() => setDetails(false)} />}
    </section>
  );
}
