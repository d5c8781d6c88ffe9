// The open chat.
import { ChatType } from "#gen/parley/chat/v1/chat_pb.js";
import type { Client } from "@parley/client";
import { useChat, useStatus } from "@parley/client/react";
import { useRef, useState } from "preact/hooks";
import { Composer } from "./composer";
import { Details } from "./details";
import type { Failures } from "./failures";
import { otherOf, titleOf } from "./format";
import { Avatar, Icon } from "./icons";
import { Messages } from "./messages";
import { useNames } from "./people";
import { useReading } from "./unread";

interface Props {
  client: Client;
  chatId: string;
  failures: Failures;
}

export function Chat({ client, chatId, failures }: Props) {
  const { connection } = useStatus(client);
  // What is read of a chat before the first list of chats came is read again after it.
  const listed = connection === "live" || client.chat(chatId) !== undefined;
  const chat = useChat(client, listed ? chatId : undefined);
  const failed = failures.use(chatId);
  const [details, setDetails] = useState(false);
  const people = useNames(client);
  const down = useRef<() => void>(() => {});
  useReading(client, chat);
  if (!chat?.chat) {
    return (
      <section class="nothing" aria-label="No chat">
        <h1>{connection === "live" ? "This chat is not one of yours." : "Loading…"}</h1>
        <a href="#">Back to the chats</a>
      </section>
    );
  }
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
        failures={failures}
        failed={failed}
        down={down}
      />
      <Composer
        draft={`${client.userId} ${chatId}`}
        onSend={(text) => {
          client.send(chatId, text);
          down.current();
        }}
      />
      {details && <Details client={client} chat={chat} group={group} onClose={() => setDetails(false)} />}
    </section>
  );
}
