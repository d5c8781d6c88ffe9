// What the device was shown of the store's history.
import { Code } from "@connectrpc/connect";
import type { SubscribeResponse } from "#gen/parley/delivery/v1/delivery_service_pb.js";
import type { Machine } from "./machine.js";
import { closeStream } from "./stream.js";
import type { Failure, Session } from "./types.js";

/**
 * What the device was shown at most, as it says it with each call: the server refuses a call if that is not part of its
 * store's history. Empty before the first answer.
 */
export const historyOf = (s: Session) => (s.generation === "" ? "" : `${s.generation}-${s.commit ?? 0n}`);

/** The generation and commit of a place, as the header has it. */
function parse(said: string): { of: string; commit: bigint } | undefined {
  const [, of, commit] = /^(.+)-(\d{1,19})$/.exec(said) ?? [];
  return of && commit ? { of, commit: BigInt(commit) } : undefined;
}

/**
 * Takes what the answer to a call of the app says, and whether it may be applied: not if it is of another generation than
 * the device is in.
 */
export function learned(m: Machine, said: string): boolean {
  const shows = parse(said);
  if (!shows) return true;
  return shows.of === m.session.generation && reach(m, "", shows.of, shows.commit);
}

/** Takes what an answer says of the store's history, and returns why it cannot be applied. It is asked for again then. */
export function answered(m: Machine, asked: string, said: string): Failure | undefined {
  const shows = parse(said);
  if (shows && reach(m, asked, shows.of, shows.commit)) return undefined;
  return { code: Code.Unavailable, reason: "OTHER_GENERATION", retryAfter: 0 };
}

/**
 * Says that what follows may show a commit, and whether it may be applied. An answer of another generation than the
 * device is in holds all that the device had said when it asked; if it has been shown more since, that may be missing.
 */
function reach(m: Machine, asked: string, of: string, commit: bigint): boolean {
  const s = m.session;
  const shown = s.commit ?? 0n;
  let next = commit;
  if (of === s.generation) next = commit > shown ? commit : shown;
  else if (asked !== historyOf(s)) return false;
  else if (m.unnamed) {
    m.unnamed = false; // what is there may be of another history
    generation(m, of);
    return false;
  }
  m.moved ||= of !== s.generation || next !== shown;
  s.generation = of;
  s.commit = next;
  return true;
}

/** Takes what a response of the stream says, before its frames, and returns whether they may be applied. */
export function follows(m: Machine, res: SubscribeResponse): boolean {
  const s = m.stream;
  const body = res.frames[0]?.body;
  if (body?.case === "hello") {
    if (res.commit === 0n) {
      generation(m, body.value.generation);
      return true;
    }
    s.generation = body.value.generation;
    return reach(m, s.asked, s.generation, res.commit);
  }
  return s.generation === "" || reach(m, "", s.generation, res.commit); // only in the generation that the device is in
}

/** Starts over if the device was shown what the server does not have; asked is what the refused call said. */
export function refused(m: Machine, asked: string, why?: Failure) {
  if (why?.reason !== "HISTORY_CHANGED" || asked !== historyOf(m.session)) return;
  m.dropVersions();
  m.session = { token: "", generation: "", commit: 0n };
  m.sessionDirty = true;
  m.resync();
  if (m.stream.id !== 0) closeStream(m, m.cfg.clock());
}

/**
 * Drops what belongs to another generation of the store, of a server that does not compare histories. Answers about one
 * chat do not name theirs there: what came before the first that does counts as another's.
 */
export function generation(m: Machine, g: string) {
  m.unnamed &&= g === "";
  if (g === "" || g === m.session.generation) return;
  if (m.session.generation !== "" || m.chats.size + m.left.size + m.sending.size > 0) {
    m.dropVersions();
    m.setToken("");
  }
  m.session.generation = g;
  m.session.commit = 0n;
  m.sessionDirty = true;
}
