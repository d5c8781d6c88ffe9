// A new chat, with one person or as a group.
import { ChatType, HistoryMode } from "#gen/parley/chat/v1/chat_pb.js";
import { Code, ConnectError } from "@connectrpc/connect";
import type { Client } from "@parley/client";
import { useState } from "preact/hooks";
import { Dialog, useChange } from "./dialog";
import { errorText, refusalOf } from "./errors";
import { findPeople, peopleHint, useNames } from "./people";

export function NewChat({ client, onClose }: { client: Client; onClose: () => void }) {
  const [group, setGroup] = useState(false);
  const [invite, setInvite] = useState<readonly string[]>([]); // who joins by invitation only
  const onInvite = (userId: string) => setInvite([...invite, userId]);
  const [missed, setMissed] = useState<Missed[]>();
  const names = useNames(client);
  const { busy, run, alert } = useChange();
  const submit = async (e: SubmitEvent) => {
    e.preventDefault();
    const data = new FormData(e.currentTarget as HTMLFormElement);
    const name = String(data.get("name") ?? "").trim();
    let chatId = "";
    const missed: Missed[] = [];
    const made = await run(async () => {
      const people = await findPeople(client, String(data.get("people")));
      if (!group) return void (chatId = await client.createDirect(people[0] ?? ""));
      const history = data.get("history") ? HistoryMode.ALL : HistoryMode.SINCE_JOINED;
      chatId = await begin(client, { name, people, history, invite, onInvite });
      for (const userId of people.filter((id) => invite.includes(id))) {
        const why = (error: unknown) => void missed.push({ userId, why: errorText(error) });
        await client.api.users.inviteToChat({ chatId, userId }).catch(why);
      }
    });
    if (!made) return;
    location.hash = `/${chatId}`;
    if (missed.length > 0) setMissed(missed);
    else onClose();
  };
  if (missed) return <NotInvited client={client} missed={missed} onClose={onClose} />;
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
        {group && (
          <label>
            <input type="checkbox" name="history" defaultChecked /> People who join later see earlier messages
          </label>
        )}
        {alert}
        {invite.length > 0 && (
          <p role="status">
            To be invited instead of added:{" "}
            {invite.map((id) => (
              <>
                <bdi>{names.name(id)}</bdi>{" "}
              </>
            ))}
          </p>
        )}
        <button class="primary" disabled={busy}>
          {group && invite.length > 0 ? "Begin, and invite" : "Begin"}
        </button>
      </form>
    </Dialog>
  );
}

/** A person who could not be invited to a group that was created. */
interface Missed {
  userId: string;
  why: string;
}

function NotInvited({ client, missed, onClose }: { client: Client; missed: Missed[]; onClose: () => void }) {
  const { name } = useNames(client);
  return (
    <Dialog title="The group has begun" onClose={onClose}>
      {missed.map(({ userId, why }) => (
        <p key={userId} role="alert" class="error">
          <bdi>{name(userId)}</bdi> could not be invited. {why}
        </p>
      ))}
    </Dialog>
  );
}

interface Beginning {
  name: string;
  people: string[];
  history: HistoryMode;
  /** Those of the people who join by invitation, as far as the server has said. */
  invite: readonly string[];
  onInvite: (userId: string) => void;
}

/** Creates a group without those who must be invited. One more of them is told to onInvite, and no group is created. */
async function begin(client: Client, { name, people, history, invite, onInvite }: Beginning): Promise<string> {
  const added = people.filter((id) => !invite.includes(id));
  if (added.length === 0 && people.length > 0) {
    throw new ConnectError("A group begins with a person who can be added. Name one more.", Code.FailedPrecondition);
  }
  try {
    return await client.create({ type: ChatType.GROUP, name, memberIds: added, history });
  } catch (error) {
    const { rule, userId } = refusalOf(error);
    if (rule === "INVITATION_REQUIRED" && userId) onInvite(userId);
    throw error;
  }
}
