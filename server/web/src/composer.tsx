// Where a message is written. What is not sent yet is kept as a draft.
import type { Client } from "@parley/client";
import { useEffect, useRef, useState } from "preact/hooks";
import { draftOf, keepDraft, keepUntilStored } from "./drafts";
import { Icon } from "./icons";

const maxContent = 16_384; // bytes

interface Props {
  client: Client;
  chatId: string;
  /** Of the chat. */
  title: string;
  onSent: () => void;
}

export function Composer({ client, chatId, title, onSent }: Props) {
  const { userId } = client;
  const [text, setText] = useState(() => draftOf(userId, chatId));
  const field = useRef<HTMLTextAreaElement>(null);
  const over = new TextEncoder().encode(text).length - maxContent;
  const change = (next: string) => {
    keepDraft(userId, chatId, title, next);
    setText(next);
  };
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) field.current?.focus(); // elsewhere it would open a keyboard
  }, []);
  const submit = (e: Event) => {
    e.preventDefault();
    if (!text.trim() || over > 0) return;
    const message = text.trim();
    try {
      keepUntilStored(client, chatId, title, client.send(chatId, message), message);
    } catch {
      return; // the client has stopped, as the page says; the text stays
    }
    setText("");
    onSent();
    field.current?.focus();
  };
  const key = (e: KeyboardEvent) => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) submit(e);
    if (e.key === "Escape") location.hash = "";
  };
  return (
    <form class="composer" onSubmit={submit}>
      <div class="grow" data-text={text}>
        <textarea
          ref={field}
          rows={1}
          dir="auto"
          aria-label="Message"
          placeholder="Message"
          value={text}
          aria-invalid={over > 0}
          onInput={(e) => change(e.currentTarget.value)}
          onKeyDown={key}
        />
      </div>
      <button class="round primary" aria-label="Send" title="Send" disabled={!text.trim() || over > 0}>
        <Icon name="send" />
      </button>
      {over > 0 && (
        <p role="alert" class="error">
          {over} bytes too long
        </p>
      )}
    </form>
  );
}
