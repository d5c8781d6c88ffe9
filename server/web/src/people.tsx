// The names of people, and how they are found.
import type { Client } from "@parley/client";
import { useProfiles } from "@parley/client/react";
import { useMemo } from "preact/hooks";

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

  async function find(word: string): Promise<string> {
    if (word.startsWith("@")) return (await api.users.lookupByHandle({ handle: word.slice(1) })).profile!.userId;
    const address = word.includes("@") || /^\+\d{6,}$/.test(word);
    return address ? (await api.users.lookupByIdentifier({ identifier: word })).profile!.userId : word;
  }
}
