// The user's account: what others see of the user, and where the user is signed in.
import type { Profile } from "#gen/parley/user/v1/user_pb.js";
import type { Client } from "@parley/client";
import { useEffect, useState } from "preact/hooks";
import { Data } from "./data";
import { Dialog, useChange } from "./dialog";
import { ms, recently } from "./format";
import { Blocked, Settings, useRead } from "./settings";

interface Props {
  client: Client;
  onSignOut: (everywhere: boolean) => void;
  /** Deletes the account, whose id the user has typed. */
  onDelete: (confirmed: string) => Promise<void>;
  onClose: () => void;
}

export function Account({ client, onSignOut, onDelete, onClose }: Props) {
  const everywhere = () => {
    onClose();
    onSignOut(true);
  };
  return (
    <Dialog title="Your account" onClose={onClose}>
      <Own client={client} />
      <Settings client={client} />
      <Blocked client={client} />
      <Sessions client={client} onSignOut={everywhere} />
      <Data client={client} onDelete={onDelete} />
    </Dialog>
  );
}

/** The profile as the server has it now, which is changed. */
function Own({ client }: { client: Client }) {
  const { userId, api } = client;
  const { busy, run, alert } = useChange();
  const [profile, setProfile] = useState<Profile>();
  const [saved, setSaved] = useState(false);
  const read = () => run(async () => setProfile((await api.users.getProfile({ userId })).profile));
  useEffect(() => void read(), [userId]);
  const take = (next: Profile | undefined) => {
    if (next) client.profiles.put(next);
    setProfile(next);
    return next;
  };
  const submit = (e: SubmitEvent) => {
    e.preventDefault();
    const form = e.currentTarget as HTMLFormElement;
    const data = new FormData(form);
    const text = (field: string) => String(data.get(field)).trim();
    const handle = text("handle").replace(/^@/, "").toLowerCase();
    setSaved(false);
    void run(async () => {
      const { displayName, about, etag } = profile!;
      const next = { displayName: text("name"), about: text("about") };
      if (next.displayName !== displayName || next.about !== about) {
        take((await api.users.updateProfile({ ...next, etag })).profile);
      }
      if (handle && handle !== profile!.handle) take((await api.users.setHandle({ handle })).profile);
      form.querySelector<HTMLInputElement>("[name=handle]")!.value = handle; // as others see it
      setSaved(true);
    });
  };
  return (
    <section aria-labelledby="profile">
      <h3 id="profile">What others see</h3>
      {profile ? (
        <form onSubmit={submit} onInput={() => setSaved(false)}>
          <label for="display-name">Name</label>
          <input
            id="display-name"
            name="name"
            dir="auto"
            maxLength={64}
            defaultValue={profile.displayName}
            autocomplete="name"
          />
          <label for="about">About you</label>
          <textarea id="about" name="about" dir="auto" rows={2} maxLength={512} defaultValue={profile.about} />
          <label for="handle">Handle, by which others find you</label>
          <input
            id="handle"
            name="handle"
            required={profile.handle !== ""}
            pattern="@?[A-Za-z][A-Za-z0-9._]{2,31}"
            title="3 to 32 letters, digits, dots and underscores, the first a letter"
            defaultValue={profile.handle}
            aria-describedby="handle-hint"
            autocomplete="off"
            autocapitalize="none"
            spellcheck={false}
          />
          <small id="handle-hint">It can change once a day. Your id is {userId}.</small>
          {alert}
          <p class="row">
            <button class="primary" disabled={busy}>
              Save
            </button>
            <span role="status">{saved && "Saved"}</span>
          </p>
        </form>
      ) : (
        <>
          {busy && <p class="empty">Loading…</p>}
          {alert}
          {!busy && <button onClick={read}>Try again</button>}
        </>
      )}
    </section>
  );
}

/** Where the user is signed in, and the end of it. */
function Sessions({ client, onSignOut }: { client: Client; onSignOut: () => void }) {
  const { auth } = client.api;
  const { busy, run, alert } = useChange();
  const { value: sessions, reload, waiting } = useRead(async () => (await auth.listSessions({})).sessions);
  const change = async (f: () => Promise<unknown>) => {
    await run(f);
    await reload();
  };
  const others = sessions?.filter((s) => !s.current).length ?? 0;
  return (
    <section aria-labelledby="sessions">
      <h3 id="sessions">Where you are signed in</h3>
      {sessions?.length === 0 && <p class="empty">Nowhere by a code: you are here by a token, which has no session.</p>}
      <ul class="members">
        {sessions?.map((s) => (
          <li key={s.sessionId}>
            <span class="name">
              {s.device || "A device without a name"}
              {s.current && " (here)"}{" "}
              <small>
                since {recently(ms(s.createdAt))}, last used {recently(ms(s.lastUsedAt))}
              </small>
            </span>
            {!s.current && (
              <button
                class="danger"
                disabled={busy}
                onClick={() => change(() => auth.revokeSession({ sessionId: s.sessionId }))}
              >
                End
                <span class="spoken">
                  {" "}
                  the session of {s.device || "a device without a name"}, last used {recently(ms(s.lastUsedAt))}
                </span>
              </button>
            )}
          </li>
        ))}
      </ul>
      {alert}
      {waiting}
      {others > 0 && (
        <p class="row">
          <button
            class="danger"
            disabled={busy}
            onClick={() => change(() => auth.revokeAllSessions({ keepCurrent: true }))}
          >
            End all others
          </button>
          <button class="danger" disabled={busy} onClick={onSignOut}>
            Sign out everywhere
          </button>
        </p>
      )}
    </section>
  );
}
