// The way out.
import { Code, ConnectError } from "@connectrpc/connect";
import type { Client } from "@parley/client";
import { forgetDrafts } from "./drafts";
import { type Remembered, ways } from "./session";

/** Ends the session, or all of the user, and forgets what the browser keeps. False if the server was not notified. */
export async function signOut(who: Remembered, client: Client, everywhere: boolean): Promise<boolean> {
  const way = ways[who.way]!;
  let told = true;
  try {
    await way.signOut?.(client, everywhere);
  } catch (error) {
    told = ConnectError.from(error).code === Code.Unauthenticated; // it had ended
  }
  await forget(who, client);
  return told;
}

/** Forgets what the browser keeps of a user. */
export async function forget(who: Remembered, client: Client) {
  ways[who.way]!.drop?.(who);
  await client.forget().catch(() => {}); // there was no storage
  forgetDrafts(who.userId);
}
