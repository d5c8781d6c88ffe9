// A person, as far as others see it, and what the user may do about the person.
import type { Client } from "@parley/client";
import { useProfiles } from "@parley/client/react";
import { Dialog, useChange } from "./dialog";
import { Avatar } from "./icons";
import { useNames } from "./people";
import { listBlocked, useRead } from "./settings";

interface Props {
  client: Client;
  userId: string;
}

export function Person({ client, userId, onClose }: Props & { onClose: () => void }) {
  const { name } = useNames(client);
  const { busy, run, alert } = useChange();
  const write = () =>
    run(async () => {
      const chatId = await client.createDirect(userId);
      onClose();
      location.hash = `/${chatId}`;
    });
  return (
    <Dialog title={name(userId)} onClose={onClose}>
      <AboutPerson client={client} userId={userId} />
      <p class="row">
        <button class="primary" disabled={busy} onClick={write}>
          Write to this person
        </button>
      </p>
      {alert}
      <Block client={client} userId={userId} />
    </Dialog>
  );
}

export function AboutPerson({ client, userId }: Props) {
  const profile = useProfiles(client);
  const { name, mark } = useNames(client);
  return (
    <div class="about">
      <Avatar id={userId} name={name(userId)} />
      <p>
        <span dir="auto">{mark(userId)}</span>{" "}
        <span class="text" dir="auto">
          {profile(userId)?.about}
        </span>
      </p>
    </div>
  );
}

/** Blocks and unblocks a person. */
export function Block({ client, userId }: Props) {
  const { users } = client.api;
  const { value: blocked, setValue, waiting } = useRead(async () => (await listBlocked(client)).includes(userId));
  const { busy, run, alert } = useChange();
  const change = () =>
    run(async () => {
      await (blocked ? users.unblockUser({ userId }) : users.blockUser({ userId }));
      setValue(!blocked);
    });
  return (
    <section aria-label="Block">
      {waiting}
      {blocked !== undefined && (
        <p class="row">
          <button class={blocked ? "" : "danger"} disabled={busy} onClick={change}>
            {blocked ? "Unblock" : "Block"}
          </button>
          <small>
            {blocked
              ? "You have blocked this person: neither of you writes to the other or adds the other to groups."
              : "Neither of you then writes to the other or adds the other to groups. The person is not told."}
          </small>
        </p>
      )}
      {alert}
    </section>
  );
}
