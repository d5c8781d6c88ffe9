// Who is here: the page to sign in, or the chats of who has.
import { Client } from "@parley/client";
import { useStatus } from "@parley/client/react";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { keepUnstored } from "./drafts";
import { App } from "./app";
import { Dialog } from "./dialog";
import { unsentTexts } from "./left";
import { AskName } from "./name";
import { endingOf, recall, remember, type Remembered, ways } from "./session";
import { SignIn } from "./signin";
import { forget, signOut } from "./signout";

export function Root() {
  const [who, setWho] = useState(recall);
  const [notice, setNotice] = useState("");
  const change = (next: Remembered | undefined, why = "") => {
    remember(next, who);
    if (!next) location.hash = "";
    setNotice(why);
    setWho(next);
  };
  if (!who) return <SignIn notice={notice} onSignIn={change} onNotice={setNotice} />;
  return <Signed key={`${who.way} ${who.userId} ${who.secret}`} who={who} onEnd={(why) => change(undefined, why)} />;
}

interface SignedProps {
  who: Remembered;
  /** Nobody is signed in any more; says why, unless the user wanted it. */
  onEnd: (why: string) => void;
}

const untold = {
  here: "You are signed out here, but the server could not be notified. The session can be ended on another device.",
  everywhere: "You are signed out here, but the server could not be notified: your other sessions stay active.",
};

function Signed({ who, onEnd }: SignedProps) {
  const session = useMemo(() => ways[who.way]!.session(who), [who]);
  const [client, setClient] = useState<Client>();
  useLayoutEffect(() => {
    const { userId, token } = session;
    const c = new Client({ userId, token, pageSize: 50 });
    setClient(c.start());
    return () => void c.close();
  }, [session]);
  if (!client) return null;
  const deleted = async () => {
    await forget(who, client);
    onEnd("Your account is deleted.");
  };
  const leave = async (everywhere: boolean) => {
    const told = await signOut(who, client, everywhere);
    onEnd(told ? "" : untold[everywhere ? "everywhere" : "here"]);
  };
  const { warning } = session;
  const ends = { onSignOut: leave, onDeleted: deleted, onEnd };
  return <Here client={client} who={who} warning={warning} {...ends} />;
}

interface HereProps extends SignedProps {
  client: Client;
  warning: string | undefined;
  onSignOut: (everywhere: boolean) => Promise<void>;
  /** The account was deleted. */
  onDeleted: () => void;
}

/** The chats, until the user signs out or the session ends. */
function Here({ client, who, warning, onSignOut, onDeleted, onEnd }: HereProps) {
  const [leaving, setLeaving] = useState(false);
  const [asking, setAsking] = useState<"here" | "everywhere">(); // before unsent messages are lost
  const { connection, why } = useStatus(client);
  const gone = useGone(who);
  // What ends the session of the tab that leads need not end this one, which leads next.
  const stopped = connection === "stopped" && client.leads ? why : undefined;
  const deleting = useRef(false); // which ends the session, too
  const over = endingOf(gone ? "Unauthenticated" : stopped, client.unsent);
  useEffect(() => {
    if (!over || leaving || deleting.current) return;
    setLeaving(true);
    ways[who.way]!.drop?.(who);
    void client
      .forget({ keepUnsent: true })
      .catch(() => {}) // there was no storage
      .then(() => {
        keepUnstored(who.userId);
        onEnd(over);
      });
  }, [over, leaving]);
  if (leaving) return <p class="nothing">Signing out…</p>;
  const leave = (everywhere: boolean) => {
    setLeaving(true);
    void onSignOut(everywhere);
  };
  const deleteAccount = async (confirmUserId: string) => {
    deleting.current = true;
    try {
      await client.api.users.deleteAccount({ confirmUserId });
    } catch (error) {
      deleting.current = false;
      throw error;
    }
    setLeaving(true);
    onDeleted();
  };
  const ask = (everywhere = false) => {
    const { messages, drafts } = unsentTexts(client);
    if (messages + drafts > 0) setAsking(everywhere ? "everywhere" : "here");
    else leave(everywhere);
  };
  return (
    <>
      <App client={client} warning={warning} onSignOut={ask} onDelete={deleteAccount} />
      {ways[who.way]?.asksName && <AskName client={client} />}
      {asking && (
        <Unsent
          {...unsentTexts(client)}
          onLeave={() => leave(asking === "everywhere")}
          onClose={() => setAsking(undefined)}
        />
      )}
    </>
  );
}

/** Whether another tab has ended the session. */
function useGone(who: Remembered): boolean {
  const [gone, setGone] = useState(false);
  useEffect(() => {
    const changed = () => setGone(ways[who.way]!.alive?.(who) === false);
    addEventListener("storage", changed);
    return () => removeEventListener("storage", changed);
  }, [who]);
  return gone;
}

interface UnsentProps {
  messages: number;
  drafts: number;
  onLeave: () => void;
  onClose: () => void;
}

function Unsent({ messages, drafts, onLeave, onClose }: UnsentProps) {
  return (
    <Dialog title="Sign out?" onClose={onClose}>
      <p>
        {messages > 0 && (messages === 1 ? "A message was not sent. " : `${messages} messages were not sent. `)}
        {drafts > 0 && (drafts === 1 ? "There is a draft. " : `There are ${drafts} drafts. `)}
        {messages + drafts === 1 ? "It is" : "They are"} lost when you sign out.
      </p>
      <p class="row">
        <button onClick={onClose}>Stay</button>
        <button class="danger" onClick={onLeave}>
          Sign out
        </button>
      </p>
    </Dialog>
  );
}
