// Chats that the user is no longer a member of, with the text that was meant for them.
import type { Client } from "@parley/client";
import { useLeftChats, useOutbox, useRefused, useStatus } from "@parley/client/react";
import { useEffect, useRef, useState } from "preact/hooks";
import { draftsOf, dropDraft, useDrafts } from "./drafts";
import { refusalText } from "./errors";
import { Icon } from "./icons";
import { useNames } from "./people";

interface LeftText {
  key: string;
  text: string;
  /** Why it is here. */
  note: string;
  /** Drops it; missing while the server may still take it. */
  drop?: () => void;
}

interface LeftOver {
  chatId: string;
  title: string;
  changedBy: string;
  texts: LeftText[];
}

/** The texts of a user for chats of which the user is no member, by chat. */
function useLeftOvers(client: Client): LeftOver[] {
  const { userId } = client;
  const left = useLeftChats(client);
  const refused = useRefused(client);
  const outbox = useOutbox(client);
  const drafts = useDrafts(userId);
  const live = useStatus(client).connection === "live"; // until then the chats may not be known
  const found = new Map<string, LeftOver>();
  const add = (chatId: string, text: LeftText, title = "") => {
    const known = left.find((l) => l.chatId === chatId);
    if (client.chat(chatId)?.chat || !(live || known)) return;
    const over = found.get(chatId) ?? { chatId, title: "", changedBy: known?.changedBy ?? "", texts: [] };
    over.title ||= known?.name || title;
    over.texts.push(text);
    found.set(chatId, over);
  };
  for (const { entry, reason } of refused) {
    const { clientMessageId: key, chatId, content: text } = entry;
    add(chatId, { key, text, note: refusalText(reason), drop: () => client.dismiss(key) });
  }
  for (const { clientMessageId: key, chatId, content: text } of outbox) {
    add(chatId, { key, text, note: "Not sent yet." });
  }
  for (const { chatId, title, text } of drafts) {
    const drop = () => dropDraft(userId, chatId);
    add(chatId, { key: "draft", text, note: "A draft.", drop }, title);
  }
  return [...found.values()];
}

const anyChat = "a chat";

/** Leads to the texts, above the list of chats. */
export function LeftOvers({ client, open }: { client: Client; open: string | undefined }) {
  const overs = useLeftOvers(client);
  if (overs.length === 0) return null;
  return (
    <ul class="leftovers" role="list" aria-label="Text for chats that you have left">
      {overs.map(({ chatId, title, texts }) => (
        <li key={chatId}>
          <a href={`#/${chatId}`} aria-current={chatId === open ? "page" : undefined}>
            <Icon name="failed" />
            <span>
              <bdi>{title || anyChat}</bdi>: {texts.length === 1 ? "a text" : `${texts.length} texts`} not sent
            </span>
          </a>
        </li>
      ))}
    </ul>
  );
}

/** Instead of a chat that is not one of the user's. */
export function LeftChat({ client, chatId }: { client: Client; chatId: string }) {
  const { connection } = useStatus(client);
  const over = useLeftOvers(client).find((o) => o.chatId === chatId);
  const left = useLeftChats(client).find((l) => l.chatId === chatId);
  const { name } = useNames(client);
  const heading = useRef<HTMLHeadingElement>(null);
  const known = left !== undefined || over !== undefined;
  useEffect(() => {
    if (known && document.activeElement === document.body) heading.current?.focus(); // the field of the chat is gone
  }, [known]);
  const title = <bdi>{left?.name || over?.title || anyChat}</bdi>;
  const by = left?.changedBy;
  return (
    <section class="nothing" aria-label="No chat">
      <h1 ref={heading} tabIndex={-1}>
        {known ? (
          <>
            {by === client.userId && <>You left {title}.</>}
            {by && by !== client.userId && (
              <>
                <bdi>{name(by)}</bdi> removed you from {title}.
              </>
            )}
            {!by && <>You are no longer a member of {title}.</>}
          </>
        ) : connection === "live" ? (
          "This chat is not one of yours."
        ) : (
          "Loading…"
        )}
      </h1>
      {over && (
        <>
          <p>{over.texts.length === 1 ? "This text was" : "These texts were"} not sent:</p>
          <ul class="texts">
            {over.texts.map((t) => (
              <li key={t.key}>
                <p class="text" dir="auto">
                  {t.text}
                </p>
                <p class="row">
                  <small>{t.note}</small>
                  <Copy text={t.text} />
                  {t.drop && (
                    <button class="danger" onClick={t.drop}>
                      Delete
                    </button>
                  )}
                </p>
              </li>
            ))}
          </ul>
        </>
      )}
      <a href="#">Back to the chats</a>
    </section>
  );
}

/** Copies a text to the clipboard. */
export function Copy({ text }: { text: string }) {
  const [done, setDone] = useState("");
  const copy = async () => setDone((await toClipboard(text)) ? "Copied" : "This browser does not allow it");
  return (
    <>
      <button onClick={copy}>Copy</button> <span role="status">{done}</span>
    </>
  );
}

async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text); // the page is not in a secure context, or may not write
  }
}

function copySelected(text: string): boolean {
  const field = document.createElement("textarea");
  const focused = document.activeElement as HTMLElement | null;
  field.value = text;
  field.className = "spoken";
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return done;
}

/** How many texts of a user are lost with a sign-out. */
export const unsentTexts = (client: Client) => ({
  messages: client.unsent + client.refused().length,
  drafts: draftsOf(client.userId).length,
});
