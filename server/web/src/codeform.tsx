// Sign-in with a code that is sent to an e-mail address or a phone number.
import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { RequestCodeResponse } from "#gen/parley/auth/v1/auth_service_pb.js";
import { useEffect, useRef, useState } from "preact/hooks";
import { useChange } from "./dialog";
import { refusalOf } from "./errors";
import type { Config, Remembered } from "./session";
import { door, keepTokens } from "./tokens";

interface FormProps {
  config: Config;
  onSignIn: (who: Remembered) => void;
  /** The account is suspended. */
  onSuspended: () => void;
}

export function CodeForm({ config, onSignIn, onSuspended }: FormProps) {
  const [sent, setSent] = useState<{ identifier: string; answer: RequestCodeResponse }>();
  const ask = async (identifier: string) => {
    setSent({ identifier, answer: await door.requestCode({ identifier }) });
  };
  return (
    <section aria-labelledby="by-code">
      <h2 id="by-code">Sign in</h2>
      {sent ? (
        <Code
          {...sent}
          log={config.codesInLog}
          onAgain={ask}
          onOther={() => setSent(undefined)}
          onSignIn={onSignIn}
          onSuspended={onSuspended}
        />
      ) : (
        <Identifier phones={config.codes === "any"} onAsk={ask} />
      )}
    </section>
  );
}

function Identifier({ phones, onAsk }: { phones: boolean; onAsk: (identifier: string) => Promise<void> }) {
  const { busy, run, alert } = useChange();
  const submit = (e: SubmitEvent) => {
    e.preventDefault();
    const identifier = String(new FormData(e.currentTarget as HTMLFormElement).get("identifier")).trim();
    void run(() => onAsk(identifier));
  };
  return (
    <form onSubmit={submit}>
      <label for="identifier">{phones ? "E-mail address, or phone number with +" : "E-mail address"}</label>
      <input
        id="identifier"
        name="identifier"
        inputMode={phones ? "text" : "email"}
        required
        minLength={3}
        maxLength={254}
        autocomplete="username"
        autocapitalize="none"
        spellcheck={false}
      />
      {alert}
      <button class="primary" disabled={busy}>
        Send a code
      </button>
    </form>
  );
}

interface CodeProps {
  identifier: string;
  answer: RequestCodeResponse;
  log: boolean;
  onAgain: (identifier: string) => Promise<void>;
  onOther: () => void;
  onSignIn: (who: Remembered) => void;
  onSuspended: () => void;
}

function Code({ identifier, answer, log, onAgain, onOther, onSignIn, onSuspended }: CodeProps) {
  const { busy, run, alert } = useChange();
  const field = useRef<HTMLInputElement>(null);
  const early = useEarly(answer);
  useEffect(() => field.current?.focus(), [answer]);
  const submit = (e: SubmitEvent) => {
    e.preventDefault();
    const code = String(new FormData(e.currentTarget as HTMLFormElement).get("code")).trim();
    void run(async () => {
      const { requestId } = answer;
      const device = deviceName(navigator.userAgent);
      const { tokens } = await door.verifyCode({ identifier, requestId, code, device }).catch((error: unknown) => {
        if (refusalOf(error).reason === "ACCOUNT_SUSPENDED") onSuspended();
        throw error;
      });
      keepTokens(tokens!);
      onSignIn({ way: "code", userId: tokens!.userId, secret: tokens!.sessionId });
    });
  };
  return (
    <form onSubmit={submit}>
      <p role="status">
        {log
          ? "The server has written a code into its log."
          : `If codes can be sent to ${identifier}, one is on its way.`}{" "}
        It is good for five minutes.
      </p>
      <label for="code">Code for {identifier}</label>
      <input
        id="code"
        name="code"
        ref={field}
        required
        inputMode="numeric"
        autocomplete="one-time-code"
        pattern="\s*[0-9]{6}\s*"
        title="Six digits"
        maxLength={10}
      />
      {alert}
      <button class="primary" disabled={busy}>
        Sign in
      </button>
      <p class="row">
        <button type="button" disabled={busy || early} onClick={() => run(() => onAgain(identifier))}>
          Send another code
        </button>
        <button type="button" disabled={busy} onClick={onOther}>
          Another address
        </button>
      </p>
    </form>
  );
}

/** Whether it is too early for another code. */
function useEarly({ resendAt }: RequestCodeResponse): boolean {
  const [early, setEarly] = useState(true);
  useEffect(() => {
    setEarly(true);
    const wait = resendAt ? timestampMs(resendAt) - Date.now() : 0;
    const timer = setTimeout(() => setEarly(false), Math.min(Math.max(wait, 0), 60_000)); // clocks may differ
    return () => clearTimeout(timer);
  }, [resendAt]);
  return early;
}

const browsers = ["Edg", "OPR", "Firefox", "Chrome", "Safari"];
const systems = ["Android", "iPhone", "iPad", "Windows", "Mac", "CrOS", "Linux"];
const known: Record<string, string> = { Edg: "Edge", OPR: "Opera", CrOS: "ChromeOS" };

/** What the list of sessions calls this browser. */
export function deviceName(agent: string): string {
  const [browser, system] = [browsers, systems].map((names) => names.find((n) => agent.includes(n)));
  return [browser, system].flatMap((n) => (n ? [known[n] ?? n] : [])).join(" on ");
}
