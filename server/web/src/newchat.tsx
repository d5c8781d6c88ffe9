// A new chat, with one person or as a group.
import type { Client } from "@parley/client";
import { useState } from "preact/hooks";
import { Dialog, useChange } from "./dialog";
import { findPeople, peopleHint } from "./people";

export function NewChat({ client, onClose }: { client: Client; onClose: () => void }) {
  const [group, setGroup] = useState(false);
  const { busy, run, alert } = useChange();
  const submit = async (e: SubmitEvent) => {
    e.preventDefault();
    const data = new FormData(e.currentTarget as HTMLFormElement);
    const name = String(data.get("name") ?? "").trim();
    let chatId = "";
    const made = await run(async () => {
      const people = await findPeople(client, String(data.get("people")));
      chatId = await (group ? client.createGroup(name, people) : client.createDirect(people[0] ?? ""));
    });
    if (!made) return;
    onClose();
    location.hash = `/${chatId}`;
  };
  return (
    <Dialog title="New chat" onClose={onClose}>
      <form onSubmit={submit}>
        <fieldset class="kinds">
          <legend class="spoken">Kind of chat</legend>
          <label>
            <input type="radio" name="kind" checked={!group} onChange={() => setGroup(false)} /> With one person
          </label>
          <label>
            <input type="radio" name="kind" checked={group} onChange={() => setGroup(true)} /> Group
          </label>
        </fieldset>
        {group && (
          <>
            <label for="group-name">Name of the group</label>
            <input id="group-name" name="name" dir="auto" required maxLength={128} autocomplete="off" />
          </>
        )}
        <label for="people">{group ? "People, with commas between them" : "Person"}</label>
        <input
          id="people"
          name="people"
          dir="auto"
          required
          autofocus
          autocomplete="off"
          autocapitalize="none"
          spellcheck={false}
          aria-describedby="people-hint"
          pattern={group ? ".+" : "\\s*[^\\s,]+\\s*"}
        />
        <small id="people-hint">{peopleHint}</small>
        {alert}
        <button class="primary" disabled={busy}>
          Begin
        </button>
      </form>
    </Dialog>
  );
}
