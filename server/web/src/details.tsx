// What a chat is: its name and members, and what the user may do about it.
import { MemberRole } from "#gen/parley/chat/v1/chat_pb.js";
import type { ChatView, Client, Member } from "@parley/client";
import { useProfiles } from "@parley/client/react";
import { Dialog, useChange } from "./dialog";
import { isMuted, ms, otherOf, shortDay, titleOf } from "./format";
import { Avatar } from "./icons";
import { findPeople, peopleHint, useNames } from "./people";

interface Props {
  client: Client;
  chat: ChatView;
  group: boolean;
  onClose: () => void;
}

const roles: Record<number, string> = { [MemberRole.OWNER]: "owner", [MemberRole.ADMIN]: "admin" };

export function Details({ client, chat, group, onClose }: Props) {
  const { chatId } = chat;
  const { chats } = client.api;
  const { busy, run, alert } = useChange();
  const { name } = useNames(client);
  const role = chat.state?.role ?? MemberRole.MEMBER;
  const leads = role === MemberRole.OWNER || role === MemberRole.ADMIN;
  const muted = isMuted(chat);
  const archived = !!chat.state?.archived;
  const leave = async () => {
    if (!(await run(() => chats.leaveChat({ chatId })))) return;
    onClose();
    location.hash = "";
  };
  return (
    <Dialog title={titleOf(chat, client.userId, name)} onClose={onClose}>
      <About client={client} chat={chat} />
      {group && leads && <Rename client={client} chat={chat} />}
      <p class="row">
        <button
          disabled={busy}
          aria-pressed={muted}
          onClick={() => run(() => (muted ? chats.unmuteChat({ chatId }) : chats.muteChat({ chatId })))}
        >
          {muted ? "Unmute" : "Mute"}
        </button>
        <button
          disabled={busy}
          aria-pressed={archived}
          onClick={() => run(() => (archived ? chats.unarchiveChat({ chatId }) : chats.archiveChat({ chatId })))}
        >
          {archived ? "Take out of the archive" : "Archive"}
        </button>
        {group && role !== MemberRole.OWNER && (
          <button class="danger" disabled={busy} onClick={leave}>
            Leave
          </button>
        )}
      </p>
      {alert}
      {group && <Members client={client} chat={chat} role={role} />}
      {group && leads && <Add client={client} chat={chat} owner={role === MemberRole.OWNER} />}
    </Dialog>
  );
}

/** The person or the group, as far as others see it. */
function About({ client, chat }: { client: Client; chat: ChatView }) {
  const profile = useProfiles(client);
  const { name, mark } = useNames(client);
  const other = otherOf(chat, client.userId);
  const began = ms(chat.chat?.createdAt);
  return (
    <div class="about">
      <Avatar id={other ?? chat.chatId} name={titleOf(chat, client.userId, name)} />
      {other ? (
        <p>
          <span dir="auto">{mark(other)}</span> <span dir="auto">{profile(other)?.about}</span>
        </p>
      ) : (
        <p>
          <span>{chat.chat?.memberCount} members</span> <span>{began > 0 && `since ${shortDay(began)}`}</span>
        </p>
      )}
    </div>
  );
}

function Rename({ client, chat }: { client: Client; chat: ChatView }) {
  const { busy, run, alert } = useChange();
  const submit = (e: SubmitEvent) => {
    e.preventDefault();
    const name = String(new FormData(e.currentTarget as HTMLFormElement).get("name")).trim();
    void run(() => client.api.chats.updateChat({ chatId: chat.chatId, name }));
  };
  return (
    <form onSubmit={submit}>
      <label for="chat-name">Name</label>
      <p class="row">
        <input
          id="chat-name"
          name="name"
          dir="auto"
          required
          maxLength={128}
          defaultValue={chat.chat?.name}
          autocomplete="off"
        />
        <button disabled={busy}>Rename</button>
      </p>
      {alert}
    </form>
  );
}

function Members({ client, chat, role }: { client: Client; chat: ChatView; role: MemberRole }) {
  const { busy, run, alert } = useChange();
  const { chatId, members } = chat;
  const { chats } = client.api;
  const people = useNames(client);
  const me = client.userId;
  const owner = role === MemberRole.OWNER;
  const removable = (m: Member) =>
    m.userId !== me && (owner || (role === MemberRole.ADMIN && m.role === MemberRole.MEMBER));
  const setRole = (m: Member) => {
    const next = m.role === MemberRole.ADMIN ? MemberRole.MEMBER : MemberRole.ADMIN;
    return run(() => chats.updateMemberRole({ chatId, userId: m.userId, role: next }));
  };
  return (
    <section aria-labelledby="members">
      <h3 id="members">Members</h3>
      {!members && <p class="empty">Loading…</p>}
      <ul class="members">
        {members?.map((m) => (
          <li key={m.userId}>
            <Avatar id={m.userId} name={people.name(m.userId)} />
            <span class="name">
              <bdi>{people.name(m.userId)}</bdi>
              {m.userId === me && " (you)"}
              {people.mark(m.userId) && " "}
              {people.mark(m.userId) && <small dir="auto">{people.mark(m.userId)}</small>}
              {roles[m.role] && " "}
              {roles[m.role] && <small>{roles[m.role]}</small>}
            </span>
            {owner && m.userId !== me && (
              <button disabled={busy} onClick={() => setRole(m)}>
                {m.role === MemberRole.ADMIN ? "Make a plain member" : "Make an admin"}
                <span class="spoken"> of {people.name(m.userId)}</span>
              </button>
            )}
            {removable(m) && (
              <button
                class="danger"
                disabled={busy}
                onClick={() => run(() => chats.removeMember({ chatId, userId: m.userId }))}
              >
                Remove<span class="spoken"> {people.name(m.userId)}</span>
              </button>
            )}
          </li>
        ))}
      </ul>
      {alert}
    </section>
  );
}

function Add({ client, chat, owner }: { client: Client; chat: ChatView; owner: boolean }) {
  const { busy, run, alert } = useChange();
  const submit = async (e: SubmitEvent) => {
    e.preventDefault();
    const form = e.currentTarget as HTMLFormElement;
    const data = new FormData(form);
    const role = data.get("admin") ? MemberRole.ADMIN : MemberRole.MEMBER;
    const add = async () => {
      const [userId = ""] = await findPeople(client, String(data.get("user")));
      await client.api.chats.addMember({ chatId: chat.chatId, userId, role });
    };
    if (await run(add)) form.reset();
  };
  return (
    <form onSubmit={submit}>
      <label for="new-member">Add a member</label>
      <p class="row">
        <input
          id="new-member"
          name="user"
          dir="auto"
          required
          pattern="\s*[^\s,]+\s*"
          aria-describedby="new-member-hint"
          autocomplete="off"
          autocapitalize="none"
          spellcheck={false}
        />
        <button disabled={busy}>Add</button>
      </p>
      <small id="new-member-hint">{peopleHint}</small>
      {owner && (
        <label>
          <input type="checkbox" name="admin" /> as an admin
        </label>
      )}
      {alert}
    </form>
  );
}
