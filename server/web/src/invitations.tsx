// Invitations to groups.
import type { Invitation } from "#gen/parley/user/v1/user_pb.js";
import type { Client } from "@parley/client";
import { useStatus } from "@parley/client/react";
import { useEffect, useState } from "preact/hooks";
import { Dialog, useChange } from "./dialog";
import { ms, shortDay } from "./format";
import { Avatar, Icon } from "./icons";
import { useNames } from "./people";
import { useVisible } from "./unread";

const interval = 120_000; // no frame of the stream tells of an invitation

/** The user's invitations, read while the page is looked at. */
function useInvitations(client: Client) {
  const [list, setList] = useState<Invitation[]>([]);
  const visible = useVisible();
  const live = useStatus(client).connection === "live";
  const read = async () => setList((await client.api.users.listInvitations({})).invitations);
  useEffect(() => {
    if (!visible || !live) return;
    const look = () => void read().catch(() => {}); // the next time
    look();
    const timer = setInterval(look, interval);
    return () => clearInterval(timer);
  }, [client, visible, live]);
  return { list, read };
}

/** Says how many invitations there are, above the list of chats, and shows them. */
export function Invitations({ client }: { client: Client }) {
  const { list, read } = useInvitations(client);
  const [shown, show] = useState(false);
  if (list.length === 0 && !shown) return null;
  return (
    <>
      <button class="invitations" onClick={() => show(true)}>
        <Icon name="person" /> Invitations <span class="count">{list.length}</span>
      </button>
      {shown && <Answers client={client} list={list} onAnswered={read} onClose={() => show(false)} />}
    </>
  );
}

interface AnswersProps {
  client: Client;
  list: Invitation[];
  onAnswered: () => Promise<void>;
  onClose: () => void;
}

function Answers({ client, list, onAnswered, onClose }: AnswersProps) {
  const { users } = client.api;
  const { name } = useNames(client);
  const { busy, run, alert } = useChange();
  const answer = async ({ chatId }: Invitation, accepted: boolean) => {
    const done = await run(async () => {
      await (accepted ? users.acceptInvitation({ chatId }) : users.declineInvitation({ chatId }));
    });
    await onAnswered().catch(() => {}); // one that has lapsed goes, too
    if (!done || !accepted) return;
    onClose();
    client.open(chatId);
    location.hash = `/${chatId}`;
  };
  return (
    <Dialog title="Invitations" onClose={onClose}>
      {list.length === 0 && <p class="empty">There are no others.</p>}
      <ul class="members">
        {list.map((i) => (
          <li key={i.chatId}>
            <Avatar id={i.chatId} name={i.chatName} />
            <span class="name">
              <bdi>{i.chatName}</bdi>{" "}
              <small>
                from <bdi>{name(i.invitedBy)}</bdi>, until {shortDay(ms(i.expiresAt))}
              </small>
            </span>
            <button class="primary" disabled={busy} onClick={() => answer(i, true)}>
              Join<span class="spoken"> {i.chatName}</span>
            </button>
            <button disabled={busy} onClick={() => answer(i, false)}>
              Decline<span class="spoken"> the invitation to {i.chatName}</span>
            </button>
          </li>
        ))}
      </ul>
      {alert}
    </Dialog>
  );
}
