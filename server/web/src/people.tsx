// The names of people, and how they are found.
import { Code, ConnectError } from "@connectrpc/connect";
import type { Client } from "@parley/client";
import { useProfiles } from "@parley/client/react";
import { useMemo } from "preact/hooks";
import { notFound } from "./errors";

export interface Names {
  /** What a person is called: the id of who has not said. */
  name: (userId: string) => string;
  /** What nobody else has, to tell people of one name apart; empty if the name is that. */
  mark: (userId: string) => string;
}

/** Names, kept up to date while they are shown. */
export function useNames(client: Client): Names {
  const profile = useProfiles(client);
  return useMemo(() => {
    const name = (userId: string) => {
      const p = profile(userId);
      return p?.deleted ? "Deleted account" : p?.displayName || userId;
    };
    const mark = (userId: string) => {
      const handle = profile(userId)?.handle;
      if (handle) return `@${handle}`;
      return name(userId) === userId ? "" : userId;
    };
    return { name, mark };
  }, [profile]);
}

/** What a field for people takes. */
export const peopleHint = "By @handle, by id, or by e-mail address or phone number if they allow it.";

/** The ids of people whom somebody has named, with commas or spaces between them. */
export async function findPeople({ api }: Client, text: string): Promise<string[]> {
  const ids: string[] = [];
  for (const word of text.split(/[\s,]+/).filter(Boolean)) ids.push(await find(word));
  return ids;

  // An id may look like a handle or an address, if another service has made it.
  async function find(word: string): Promise<string> {
    const handle = word.startsWith("@");
    if (!handle && !word.includes("@") && !/^\+\d{6,}$/.test(word)) return word;
    const byId = () => api.users.getProfile({ userId: word });
    const byHandle = () => api.users.lookupByHandle({ handle: word.slice(1) });
    const byAddress = () => api.users.lookupByIdentifier({ identifier: word });
    for (const way of handle ? [byHandle, byId] : [byId, byAddress]) {
      const { profile } = await way().catch(missing);
      if (profile) return profile.userId;
    }
    throw new ConnectError(notFound(word), Code.NotFound);
  }
}

/** Nothing, of a person who is not known or of a word that is no such name. */
function missing(error: unknown): { profile?: undefined } {
  const { code } = ConnectError.from(error);
  if (code === Code.NotFound || code === Code.InvalidArgument) return {};
  throw error;
}
