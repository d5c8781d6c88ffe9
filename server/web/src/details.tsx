// What a chat is: its name and members, and what the user may do about it.
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { HistoryMode, MemberRole } from "#gen/parley/chat/v1/chat_pb.js";
import type { ChatView, Client, Member } from "@parley/client";
import { useRef, useState } from "preact/hooks";
import { Dialog, useChange } from "./dialog";
import { clock, isMuted, ms, otherOf, shortDay, titleOf } from "./format";
import { Avatar } from "./icons";
import { refusalOf } from "./errors";
import { findPeople, peopleHint, useNames } from "./people";
import { AboutPerson, Block, Person } from "./person";

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
  const other = group ? undefined : otherOf(chat, client.userId);
  const muted = isMuted(chat);
  const archived = !!chat.state?.archived;
  const length = useRef<HTMLSelectElement>(null);
  const mute = () =>
    run(() => {
      const hours = Number(length.current?.value);
      if (muted) return chats.unmuteChat({ chatId });
      return chats.muteChat(hours ? { chatId, mutedUntil: timestampFromMs(Date.now() + hours * hour) } : { chatId });
    });
  const leave = async () => {
    if (!(await run(() => chats.leaveChat({ chatId })))) return;
    onClose();
    location.hash = "";
  };
  return (
    <Dialog title={titleOf(chat, client.userId, name)} onClose={onClose}>
      {other ? <AboutPerson client={client} userId={other} /> : <AboutGroup client={client} chat={chat} />}
      {group && leads && <Rename client={client} chat={chat} />}
      <p class="row">
        <button disabled={busy} aria-pressed={muted} onClick={mute}>
          {muted ? "Unmute" : "Mute"}
        </button>
        {muted ? (
          <small>{mutedUntil(chat)}</small>
        ) : (
          <select ref={length} aria-label="Mute">
            {lengths.map(([hours, text]) => (
              <option value={hours}>{text}</option>
            ))}
          </select>
        )}
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
      {other && <Block client={client} userId={other} />}
      {group && <Members client={client} chat={chat} role={role} />}
      {group && leads && <Add client={client} chat={chat} owner={role === MemberRole.OWNER} />}
    </Dialog>
  );
}

const hour = 3_600_000;
const year = 365 * 24 * hour;
const lengths = [
  [0, "until you unmute"],
  [1, "for an hour"],
  [8, "for 8 hours"],
  [168, "for a week"],
] as const;

/** Until when a chat is muted, unless that is for good. */
function mutedUntil({ state }: ChatView): string {
  const until = ms(state?.mutedUntil);
  return until < Date.now() + year ? `until ${shortDay(until)}, ${clock(until)}` : "";
}

function AboutGroup({ client, chat }: { client: Client; chat: ChatView }) {
  const { name } = useNames(client);
  const began = ms(chat.chat?.createdAt);
  return (
    <div class="about">
      <Avatar id={chat.chatId} name={titleOf(chat, client.userId, name)} />
      <p>
        <span>{chat.chat?.memberCount} members</span> <span>{began > 0 && `since ${shortDay(began)}`}</span>
        {chat.chat?.history === HistoryMode.SINCE_JOINED && <span>New members do not see earlier messages.</span>}
      </p>
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
  const [person, show] = useState<string>();
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
              {m.userId === me ? (
                <>
                  <bdi>{people.name(m.userId)}</bdi> (you)
                </>
              ) : (
                <button class="link" onClick={() => show(m.userId)}>
                  <bdi>{people.name(m.userId)}</bdi>
                </button>
              )}
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
      {person && <Person client={client} userId={person} onClose={() => show(undefined)} />}
    </section>
  );
}

function Add({ client, chat, owner }: { client: Client; chat: ChatView; owner: boolean }) {
  const { busy, run, alert } = useChange();
  const [invite, setInvite] = useState(""); // who is not added
  const [invited, setInvited] = useState("");
  const { name } = useNames(client);
  const { chatId } = chat;
  const submit = async (e: SubmitEvent) => {
    e.preventDefault();
    const form = e.currentTarget as HTMLFormElement;
    const data = new FormData(form);
    const role = data.get("admin") ? MemberRole.ADMIN : MemberRole.MEMBER;
    setInvited("");
    setInvite("");
    const add = async () => {
      const [userId = ""] = await findPeople(client, String(data.get("user")));
      try {
        await client.api.chats.addMember({ chatId, userId, role });
      } catch (error) {
        if (refusalOf(error).rule === "INVITATION_REQUIRED") setInvite(userId);
        throw error;
      }
    };
    if (await run(add)) form.reset();
  };
  const send = async () => {
    if (!(await run(() => client.api.users.inviteToChat({ chatId, userId: invite })))) return;
    setInvited(invite);
    setInvite("");
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
      {invite && (
        <p class="row">
          <button type="button" disabled={busy} onClick={send}>
            Invite <bdi>{name(invite)}</bdi>
          </button>
        </p>
      )}
      <p role="status">
        {invited && (
          <>
            <bdi>{name(invited)}</bdi> is invited, and becomes a member by accepting.
          </>
        )}
      </p>
    </form>
  );
}
