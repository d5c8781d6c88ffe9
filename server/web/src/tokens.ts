// The tokens of sessions that began with a code. The browser keeps them for all its tabs; one tab refreshes for all.
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { AuthService, type Tokens } from "#gen/parley/auth/v1/auth_service_pb.js";
import type { TokenSource } from "@parley/client";

/** The calls that need no token. */
export const door = createClient(
  AuthService,
  createConnectTransport({ baseUrl: location.origin, useBinaryFormat: true }),
);

interface Kept {
  access: string;
  /**
   * By this browser's clock, in milliseconds since 1970, because tabs and reloads share it. A clock that is corrected since
   * has the token refreshed early, or refused once.
   */
  until: number;
  refresh: string;
}

const margin = 60_000; // a token that ends so soon is refreshed first
const patience = 4000; // of one refresh: a token that was used may be used again for ten seconds
const late = 2000; // more than a tab's write into localStorage takes to be visible in the other tabs
const keyOf = (session: string) => `parley/tokens/${session}`;
const unstored = new Map<string, string>(); // where a browser stores nothing

function read(session: string): Kept | undefined {
  const key = keyOf(session);
  let text = unstored.get(key);
  try {
    text ??= localStorage.getItem(key) ?? undefined;
    return text ? (JSON.parse(text) as Kept) : undefined;
  } catch {
    return undefined;
  }
}

export const hasTokens = (session: string) => read(session) !== undefined;

/** Keeps the tokens of a session until they are dropped. */
export function keepTokens({ accessToken: access, refreshToken: refresh, sessionId }: Tokens) {
  const { exp = 0, iat = 0 } = (claimsOf(access) ?? {}) as { exp?: number; iat?: number };
  const text = JSON.stringify({ access, refresh, until: Date.now() + (exp - iat) * 1000 } satisfies Kept);
  try {
    localStorage.setItem(keyOf(sessionId), text);
  } catch {
    unstored.set(keyOf(sessionId), text);
  }
}

export function dropTokens(session: string) {
  unstored.delete(keyOf(session));
  try {
    localStorage.removeItem(keyOf(session));
  } catch {
    // There was nothing.
  }
}

/** The access tokens of a session, each refreshed before it ends, or when the server refuses it. */
export function tokensOf(session: string): TokenSource {
  let given: string | undefined;
  return async (renew) => {
    const refused = renew ? given : undefined;
    const kept = read(session);
    given = kept && good(kept, refused) ? kept.access : await once(session, refused, kept?.refresh);
    return given;
  };
}

const good = (kept: Kept, refused: string | undefined) => kept.access !== refused && kept.until - margin > Date.now();

/**
 * Refreshes, unless another tab does so with the same token. The lock alone is not enough: tab A stores the new tokens and
 * releases the lock, tab B gets the lock, still reads the old tokens, and refreshes again. So A keeps the lock until
 * its write is visible, and B, which waits for the lock, stops waiting once it sees that write. Each refresh token
 * has its own lock: a tab that is frozen with one does not block the next refresh.
 */
async function once(session: string, refused: string | undefined, token = ""): Promise<string> {
  if (!("locks" in navigator)) return refresh(session, refused);
  const end = new AbortController();
  const { signal } = end;
  const there = new Promise<string>((resolve) => {
    const look = () => {
      const kept = read(session);
      if (kept && good(kept, refused)) resolve(kept.access);
    };
    addEventListener("storage", look, { signal });
  });
  const here = new Promise<string>((resolve, reject) => {
    const locked = async () => {
      resolve(await refresh(session, refused));
      await new Promise((done) => setTimeout(done, late));
    };
    navigator.locks.request(`${keyOf(session)}/${token}`, { signal }, locked).catch(reject);
  });
  return Promise.race([there, here]).finally(() => end.abort());
}

async function refresh(session: string, refused: string | undefined): Promise<string> {
  for (let tries = 1; ; tries++) {
    const kept = read(session);
    if (!kept) throw new ConnectError("You have signed out.", Code.Unauthenticated);
    if (good(kept, refused)) return kept.access; // by another tab
    try {
      const { tokens } = await door.refresh({ refreshToken: kept.refresh }, { timeoutMs: patience });
      if (hasTokens(session)) keepTokens(tokens!);
      return tokens!.accessToken;
    } catch (error) {
      const { code } = ConnectError.from(error);
      const lost = code === Code.DeadlineExceeded || code === Code.Unknown || code === Code.Canceled;
      if (!lost || tries > 1) throw error; // the answer may be lost, and the next one is the same
    }
  }
}

/** What a token says, which the server checks; undefined if it is none. */
export function claimsOf(token: string): Record<string, unknown> | undefined {
  try {
    const part = token.split(".")[1]!.replaceAll("-", "+").replaceAll("_", "/");
    const bytes = Uint8Array.from(atob(part), (c) => c.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(bytes)) as Record<string, unknown>;
  } catch {
    return undefined;
  }
}
