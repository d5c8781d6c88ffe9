// What the user allows others, and the people whom the user has blocked.
import { type Settings as Allowed, WhoMayAdd } from "#gen/parley/user/v1/user_pb.js";
import type { Client } from "@parley/client";
import { useEffect, useRef, useState } from "preact/hooks";
import { useChange } from "./dialog";
import { errorText } from "./errors";
import { Avatar } from "./icons";
import { useNames } from "./people";

/** What the server says when it is shown, and what there is to show until then. */
export function useRead<T>(read: () => Promise<T>) {
  const [value, setValue] = useState<T>();
  const [failed, setFailed] = useState("");
  const reload = async () => {
    setFailed("");
    try {
      setValue(await read());
    } catch (error) {
      setFailed(errorText(error));
    }
  };
  useEffect(() => void reload(), []);
  const waiting = (
    <>
      {value === undefined && !failed && <p class="empty">Loading…</p>}
      <div role="alert">
        {failed && (
          <p class="error">
            {failed}{" "}
            <button type="button" onClick={reload}>
              Try again
            </button>
          </p>
        )}
      </div>
    </>
  );
  return { value, setValue, reload, waiting };
}

const whoMayAdd: [WhoMayAdd, string][] = [
  [WhoMayAdd.EVERYBODY, "Everybody"],
  [WhoMayAdd.SHARED_CHAT, "People who share a chat with you; others invite you"],
  [WhoMayAdd.NOBODY, "Nobody: everybody invites you"],
];

export function Settings({ client }: { client: Client }) {
  const { users } = client.api;
  const { value, setValue, waiting } = useRead(async () => (await users.getSettings({})).settings!);
  const { run, alert } = useChange();
  const [saved, setSaved] = useState(false);
  const queue = useRef<Promise<unknown>>(Promise.resolve());
  const last = useRef(0);
  // The choices stay enabled: one that is disabled loses the focus, and arrow keys pass over choices.
  const change = (next: Partial<Pick<Allowed, "whoMayAdd" | "findableByIdentifier">>) => {
    const before = value!;
    const own = ++last.current;
    setSaved(false);
    setValue({ ...before, ...next }); // as the user has chosen, until the server answers
    queue.current = queue.current.then(async () => {
      let settings = before;
      const done = await run(async () => void (settings = (await users.updateSettings(next)).settings!));
      if (own !== last.current) return; // another choice follows
      setValue(settings);
      setSaved(done);
    });
  };
  const chosen = value?.whoMayAdd || WhoMayAdd.EVERYBODY;
  return (
    <section aria-labelledby="settings">
      <h3 id="settings">What others may do</h3>
      {waiting}
      {value && (
        <form onSubmit={(e) => e.preventDefault()}>
          <fieldset class="choices">
            <legend>Who adds you to groups</legend>
            {whoMayAdd.map(([who, text]) => (
              <label key={who}>
                <input type="radio" name="who" checked={chosen === who} onChange={() => change({ whoMayAdd: who })} />{" "}
                {text}
              </label>
            ))}
          </fieldset>
          <label>
            <input
              type="checkbox"
              checked={value.findableByIdentifier}
              onChange={(e) => change({ findableByIdentifier: e.currentTarget.checked })}
            />{" "}
            People who know your e-mail address or phone number find you by it
          </label>
          {alert}
          <span role="status">{saved && "Saved"}</span>
        </form>
      )}
    </section>
  );
}

/** The ids of the people whom the user has blocked. */
export async function listBlocked({ api }: Client): Promise<string[]> {
  const ids: string[] = [];
  for (let pageToken = ""; ; ) {
    const page = await api.users.listBlocked({ pageToken });
    ids.push(...page.blockedUsers.map((b) => b.userId));
    pageToken = page.nextPageToken;
    if (!pageToken) return ids;
  }
}

export function Blocked({ client }: { client: Client }) {
  const { value: blocked, setValue, waiting } = useRead(() => listBlocked(client));
  const { busy, run, alert } = useChange();
  const people = useNames(client);
  const unblock = (userId: string) =>
    run(async () => {
      await client.api.users.unblockUser({ userId });
      setValue(blocked!.filter((id) => id !== userId));
    });
  return (
    <section aria-labelledby="blocked">
      <h3 id="blocked">Blocked people</h3>
      {waiting}
      {blocked?.length === 0 && <p class="empty">You have blocked nobody. You can do so from a chat with a person.</p>}
      <ul class="members">
        {blocked?.map((id) => (
          <li key={id}>
            <Avatar id={id} name={people.name(id)} />
            <span class="name">
              <bdi>{people.name(id)}</bdi> {people.mark(id) && <small dir="auto">{people.mark(id)}</small>}
            </span>
            <button disabled={busy} onClick={() => unblock(id)}>
              Unblock<span class="spoken"> {people.name(id)}</span>
            </button>
          </li>
        ))}
      </ul>
      {alert}
    </section>
  );
}
