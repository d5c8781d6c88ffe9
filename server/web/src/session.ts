// Who uses the page: ways to sign in, and what is remembered of it over a reload.
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "#gen/google/rpc/error_details_pb.js";
import type { Client, TokenSource } from "@parley/client";
import { claimsOf, dropTokens, hasTokens, tokensOf } from "./tokens";

/** What the server says about ways to sign in. */
export interface Config {
  /** People whom anybody at the server's machine may be. */
  demo: string[];
  /** The kinds of addresses that codes are sent to. */
  codes: "any" | "email" | "none";
  /** The server is one to try, and writes codes into its log. */
  codesInLog: boolean;
}

/** What lasts over a reload. */
export interface Remembered {
  way: string;
  userId: string;
  /** The way's own. */
  secret?: string;
}

/** A person who is signed in. */
export interface Session {
  userId: string;
  token: TokenSource;
  /** Shown all the time. */
  warning?: string;
}

/**
 * A way to sign in. A new one is listed in `ways`, and has a form in signin.tsx that ends with what is to be
 * remembered.
 */
export interface Way {
  offered(config: Config): boolean;
  /** A new tab starts as who signed in this way last. */
  lasts: boolean;
  /** Its users have ids that a server made: a user without a name is asked for one. */
  asksName?: boolean;
  /** The session of who has signed in this way, now or before a reload. */
  session(who: Remembered): Session;
  /** Whether there may be a session after a reload, if not always. */
  alive?(who: Remembered): boolean;
  /** Has the server end the session, or all of the user, if the way has more than a token. */
  signOut?(client: Client, everywhere: boolean): Promise<unknown>;
  /** Forgets the session, which has ended. */
  drop?(who: Remembered): void;
}

const demo: Way = {
  offered: (config) => config.demo.length > 0,
  lasts: false, // the next tab is for the other person
  session: ({ userId }) => ({
    userId,
    token: async () => {
      const answer = await fetch("/app/demo-token", { method: "POST", body: JSON.stringify({ user: userId }) });
      if (answer.ok) return ((await answer.json()) as { token: string }).token;
      const ended = answer.status === 403 || answer.status === 404;
      throw new ConnectError(await answer.text(), ended ? Code.Unauthenticated : Code.Unavailable);
    },
    warning: "Demo: everybody at this machine can be this person.",
  }),
};

/** The secret is the id of the session, whose tokens the browser's tabs share. */
const code: Way = {
  offered: ({ codes }) => codes === "any" || codes === "email",
  lasts: true,
  asksName: true,
  session: ({ userId, secret = "" }) => ({ userId, token: tokensOf(secret) }),
  alive: ({ secret = "" }) => hasTokens(secret),
  signOut: ({ api: { auth } }, everywhere) =>
    everywhere ? auth.revokeAllSessions({}, { timeoutMs: 5000 }) : auth.signOut({}, { timeoutMs: 5000 }),
  drop: ({ secret = "" }) => dropTokens(secret),
};

const ended = () => {
  const detail = { desc: ErrorInfoSchema, value: { reason: "TOKEN_EXPIRED" } };
  return new ConnectError("The token has ended.", Code.Unauthenticated, undefined, [detail]);
};

const pasted: Way = {
  offered: () => true,
  lasts: true,
  session: ({ userId, secret }) => ({
    userId,
    token: (renew) => {
      if (renew || !secret) throw ended();
      return secret;
    },
  }),
};

export const ways: Record<string, Way> = { demo, code, token: pasted };

/** The user of a token, which the server checks; undefined if it is none. */
export function userOf(token: string): string | undefined {
  const sub = claimsOf(token)?.sub;
  return typeof sub === "string" && sub !== "" ? sub : undefined;
}

const key = "parley/session";

/** A tab keeps who it is, so that two people may sit in two tabs. */
export function recall(): Remembered | undefined {
  try {
    const text = sessionStorage.getItem(key) ?? localStorage.getItem(key);
    const who = text ? (JSON.parse(text) as Remembered) : undefined;
    const way = who && ways[who.way];
    return way && who.userId && (way.alive?.(who) ?? true) ? who : undefined;
  } catch {
    return undefined; // there is no storage, or it holds something else
  }
}

export function remember(who: Remembered | undefined, before: Remembered | undefined) {
  const text = who ? JSON.stringify(who) : "";
  try {
    sessionStorage.setItem(key, text);
    if (who && ways[who.way]!.lasts) localStorage.setItem(key, text);
    else if (before && localStorage.getItem(key) === JSON.stringify(before)) localStorage.removeItem(key);
  } catch {
    // Signed in until the page is reloaded.
  }
}

export async function readConfig(): Promise<Config> {
  const answer = await fetch("/app/config.json");
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return (await answer.json()) as Config;
}

/** What the sign-in page is told of an account that is suspended. */
export const suspended = "Your account cannot be used.";

const endings: Record<string, string> = {
  SESSION_REVOKED: "Your session was ended, here or on another device.",
  INVALID_REFRESH_TOKEN: "Your session has ended.",
  ACCOUNT_SUSPENDED: suspended,
  UNAUTHENTICATED: "You are not signed in any more.",
  TOKEN_EXPIRED: "Your token has ended.",
  Unauthenticated: "You are not signed in any more.",
  PermissionDenied: "You are not signed in any more.",
};

/** What the sign-in page says if a client stopped for this reason; undefined if it may continue as it is. */
export function endingOf(why: string | undefined, unsent: number): string | undefined {
  const text = endings[why ?? ""];
  if (!text || !unsent) return text;
  const waiting = unsent === 1 ? "A message that was not sent is" : `${unsent} messages that were not sent are`;
  return `${text} ${waiting} kept here, and sent once you have signed in again.`;
}
