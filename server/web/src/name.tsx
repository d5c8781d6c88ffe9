// The question for a name, after the first sign-in.
import type { Profile } from "#gen/parley/user/v1/user_pb.js";
import type { Client } from "@parley/client";
import { useStatus } from "@parley/client/react";
import { useEffect, useState } from "preact/hooks";
import { Dialog, useChange } from "./dialog";

const keyOf = (userId: string) => `parley/asked/${userId}`;

function wasAsked(userId: string): boolean {
  try {
    return localStorage.getItem(keyOf(userId)) !== null;
  } catch {
    return true; // to be asked at each visit is worse than never
  }
}

/** Asks a user without a name for one, once. */
export function AskName({ client }: { client: Client }) {
  const { userId, api } = client;
  const { connection } = useStatus(client);
  const [profile, setProfile] = useState<Profile>();
  const { busy, run, alert } = useChange();
  useEffect(() => {
    if (connection !== "live" || wasAsked(userId)) return;
    api.users.getProfile({ userId }).then(
      ({ profile: p }) => setProfile(p?.displayName ? undefined : p),
      () => {}, // at the next visit
    );
  }, [connection, userId]);
  if (!profile) return null;
  const close = () => {
    localStorage.setItem(keyOf(userId), "1");
    setProfile(undefined);
  };
  const submit = (e: SubmitEvent) => {
    e.preventDefault();
    const displayName = String(new FormData(e.currentTarget as HTMLFormElement).get("name")).trim();
    void run(async () => {
      const { etag, about } = profile;
      const { profile: next } = await api.users.updateProfile({ displayName, about, etag });
      if (next) client.profiles.put(next);
      close();
    });
  };
  return (
    <Dialog title="What is your name?" onClose={close}>
      <form onSubmit={submit}>
        <label for="own-name">Name, as others see it</label>
        <input id="own-name" name="name" dir="auto" required maxLength={64} autofocus autocomplete="name" />
        <small>You can change it in your account at any time.</small>
        {alert}
        <p class="row end">
          <button type="button" disabled={busy} onClick={close}>
            Skip
          </button>
          <button class="primary" disabled={busy}>
            Save
          </button>
        </p>
      </form>
    </Dialog>
  );
}
