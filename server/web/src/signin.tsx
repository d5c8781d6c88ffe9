// The page for who is not signed in.
import { useEffect, useRef, useState } from "preact/hooks";
import { CodeForm } from "./codeform";
import { Avatar } from "./icons";
import { type Config, readConfig, type Remembered, suspended, userOf, ways } from "./session";

interface FormProps {
  config: Config;
  onSignIn: (who: Remembered) => void;
}

interface Props {
  /** Why somebody is here who did not sign out; empty if nobody is. */
  notice: string;
  onSignIn: (who: Remembered) => void;
  onNotice: (notice: string) => void;
}

export function SignIn({ notice, onSignIn, onNotice }: Props) {
  const [config, setConfig] = useState<Config>();
  const [failed, setFailed] = useState(false);
  const read = () => {
    setFailed(false);
    readConfig().then(setConfig, () => setFailed(true));
  };
  useEffect(read, []);
  useEffect(() => {
    document.title = "Sign in · Parley";
  }, []);
  if (notice === suspended) return <Suspended onOther={() => onNotice("")} />;
  return (
    <main class="signin">
      <h1>Parley</h1>
      <div role="alert">{notice && <p class="notice">{notice}</p>}</div>
      {failed && (
        <p role="alert" class="error">
          The server does not answer. <button onClick={read}>Try again</button>
        </p>
      )}
      {config && ways.demo!.offered(config) && <DemoForm config={config} onSignIn={onSignIn} />}
      {config && ways.code!.offered(config) && (
        <CodeForm config={config} onSignIn={onSignIn} onSuspended={() => onNotice(suspended)} />
      )}
      {config && <TokenForm config={config} onSignIn={onSignIn} />}
      <p class="foot">
        <a href="/try">What is here</a> · <a href="/docs">Documents</a> · <a href="/app/licenses.txt">Licences</a>
      </p>
    </main>
  );
}

function Suspended({ onOther }: { onOther: () => void }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), []);
  return (
    <main class="signin">
      <h1 ref={heading} tabIndex={-1}>
        {suspended}
      </h1>
      <p>
        The people who run this server have suspended it, or it was deleted. You cannot sign in or write. A suspended
        account still has its chats and messages: ask the people who run this server to restore it.
      </p>
      <p class="row">
        <button onClick={onOther}>Sign in with another account</button>
      </p>
    </main>
  );
}

function DemoForm({ config, onSignIn }: FormProps) {
  return (
    <section aria-labelledby="demo">
      <h2 id="demo">Try it as</h2>
      <ul class="people">
        {config.demo.map((userId) => (
          <li key={userId}>
            <button class="person" onClick={() => onSignIn({ way: "demo", userId })}>
              <Avatar id={userId} name={userId} />
              {userId}
            </button>
          </li>
        ))}
      </ul>
      <p class="note">Open a second window for the other one. No secret is asked for, and only at this machine.</p>
    </section>
  );
}

function TokenForm({ config, onSignIn }: FormProps) {
  const [error, setError] = useState("");
  const submit = (e: SubmitEvent) => {
    e.preventDefault();
    const form = e.currentTarget as HTMLFormElement;
    const secret = String(new FormData(form).get("token")).trim();
    const userId = userOf(secret);
    if (userId) onSignIn({ way: "token", userId, secret });
    else setError("That is no token.");
  };
  return (
    <details open={config.demo.length === 0 && !ways.code!.offered(config)}>
      <summary>Sign in with a token</summary>
      <form onSubmit={submit}>
        <label for="token">
          Token, as <code>server token NAME</code> prints it
        </label>
        <input id="token" name="token" required autocomplete="off" spellcheck={false} aria-describedby="token-error" />
        <p id="token-error" role="alert" class="error">
          {error}
        </p>
        <button class="primary">Sign in</button>
      </form>
    </details>
  );
}
