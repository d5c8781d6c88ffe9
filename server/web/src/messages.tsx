// The messages of a chat, and those of the user that are on their way.
import type { ChatView, Client, RefusedMessage } from "@parley/client";
import type { RefObject } from "preact";
import { memo } from "preact/compat";
import { useRef, useState } from "preact/hooks";
import { refusalText } from "./errors";
import { clock, dayLine, ms, partsOf, sameDay } from "./format";
import { Avatar, Icon } from "./icons";
import { Copy } from "./left";
import { useWindow } from "./window";

const together = 5 * 60_000; // messages of one sender under one name

interface Props {
  client: Client;
  chat: ChatView;
  group: boolean;
  name: (userId: string) => string;
  failed: readonly RefusedMessage[];
  down: RefObject<() => void>;
}

// "Read" goes for direct chats, as far as the server tells and the other one answers.
const states = { sending: "Sending", sent: "Sent", read: "Read", failed: "Not sent" };

interface Line {
  key: string;
  sender: string;
  text: string;
  at: number;
  sequence?: bigint;
  state: keyof typeof states;
  failure?: RefusedMessage;
}

function linesOf(
  chat: ChatView,
  me: string,
  failed: readonly RefusedMessage[],
  from: bigint,
  to: bigint,
  atLast: boolean,
): Line[] {
  const lines: Line[] = [];
  for (const m of chat.messages) {
    if (m.sequence < from || m.sequence > to) continue;
    const { senderId: sender, content: text, sequence } = m;
    const state = sequence <= chat.peerRead ? "read" : "sent";
    lines.push({ key: m.clientMessageId || m.messageId, sender, text, at: ms(m.createdAt), sequence, state });
  }
  if (!atLast) return lines;
  const there = new Set(lines.map((l) => l.key));
  for (const u of chat.outbox) {
    if (there.has(u.clientMessageId)) continue; // the stream was faster than the answer
    lines.push({ key: u.clientMessageId, sender: me, text: u.content, at: u.createdAt, state: "sending" });
  }
  for (const failure of failed) {
    const { clientMessageId: key, content: text, createdAt: at } = failure.entry;
    lines.push({ key, sender: me, text, at, state: "failed", failure });
  }
  return lines;
}

export function Messages({ client, chat, group, name, failed, down }: Props) {
  const me = client.userId;
  const rows = chat.messages.length + chat.outbox.length + failed.length;
  const view = useWindow(client, chat, rows);
  const [readTo] = useState(chat.state?.readSequence ?? 0n); // when it was opened
  const last = chat.messages.at(-1)?.sequence ?? 0n;
  const atLast = view.to >= last;
  const lines = linesOf(chat, me, failed, view.from, view.to, atLast);
  const newest = atLast ? lines.findLast((l) => l.sender === me) : undefined;
  const firstNew = lines.find((l) => l.sequence !== undefined && l.sequence > readTo && l.sender !== me)?.sequence;
  // Unless messages between are not in sight; own ones may be among them.
  const whole = (lines.find((l) => l.sequence !== undefined)?.sequence ?? 0n) <= readTo + 1n;
  const opened = readTo > 0n && whole ? firstNew : undefined;
  const seen = useRef(last); // when the end was shown last
  if (view.atEnd) seen.current = last;
  const below = last - seen.current;
  down.current = view.toEnd;
  return (
    <div class={group ? "log group" : "log"}>
      {/* It scrolls, so it can be reached by keyboard. */}
      <div ref={view.scroller} class="scroller" tabIndex={0} role="log" aria-label="Messages" onScroll={view.onScroll}>
        {chat.hasOlder && <p class="older">Loading older messages…</p>}
        {chat.loaded && !chat.hasOlder && view.from <= chat.first && <p class="older">The beginning of the chat</p>}
        <ol>
          {lines.map((line, i) => {
            const before = lines[i - 1];
            const day = !before || !sameDay(before.at, line.at);
            const first = day || before.sender !== line.sender || line.at - before.at > together;
            const mine = line.sender === me;
            return (
              <li key={line.key} data-key={line.key} class={`${mine ? "mine" : "theirs"}${first ? " first" : ""}`}>
                {day && <p class="day">{dayLine(line.at)}</p>}
                {line.sequence !== undefined && line.sequence === opened && <p class="new">New messages</p>}
                <Bubble
                  at={line.at}
                  text={line.text}
                  state={line.state}
                  sender={line.sender}
                  mine={mine}
                  name={mine ? "You" : name(line.sender)}
                  named={first && group && !mine}
                />
                {line.failure && <Refused client={client} failure={line.failure} />}
              </li>
            );
          })}
        </ol>
      </div>
      {/* Of the states of all messages only that of the newest is spoken when it changes. */}
      <p class="spoken" role="status">
        {newest && `Your last message: ${states[newest.state]}`}
      </p>
      {!view.atEnd && (
        <button class="round down" aria-label="To the last message" title="To the last message" onClick={view.toEnd}>
          <Icon name="down" />
          {below > 0n && <span class="count">{String(below)}</span>}
        </button>
      )}
    </div>
  );
}

interface BubbleProps {
  at: number;
  text: string;
  state: Line["state"];
  sender: string;
  mine: boolean;
  name: string;
  /** The first of some that the sender wrote in a group. */
  named: boolean;
}

const Bubble = memo(({ at, text, state, sender, mine, name, named }: BubbleProps) => (
  <div class={`bubble ${state}`}>
    {named && <Avatar id={sender} name={name} />}
    {named ? (
      <strong>
        <bdi>{name}</bdi>
      </strong>
    ) : (
      <span class="spoken">{name}: </span>
    )}
    <div class="body" dir="auto">
      <span class="text">
        {partsOf(text).map(({ text: t, href }) =>
          href ? (
            <a href={href} target="_blank" rel="noopener noreferrer">
              {t}
            </a>
          ) : (
            t
          ),
        )}
      </span>
      <small dir="ltr">
        <time dateTime={new Date(at).toISOString()}>{clock(at)}</time>
        {mine && (
          <span class={state === "read" ? "read" : "state"} role="img" aria-label={states[state]} title={states[state]}>
            <Icon name={state} />
          </span>
        )}
      </small>
    </div>
  </div>
));

function Refused({ client, failure }: { client: Client; failure: RefusedMessage }) {
  const { entry, reason } = failure;
  const id = entry.clientMessageId;
  const [done, setDone] = useState(false); // the message goes once that is stored, and not twice
  const again = () => {
    try {
      client.send(entry.chatId, entry.content, { instead: id });
      setDone(true);
    } catch {
      // The client has stopped, as the page says; the message stays.
    }
  };
  return (
    <p class="refused" role="alert">
      {refusalText(reason)}{" "}
      <button disabled={done} onClick={again}>
        Send again
      </button>{" "}
      <Copy text={entry.content} />{" "}
      <button disabled={done} onClick={() => client.dismiss(id)}>
        Delete
      </button>
    </p>
  );
}
