// The way out.
import { Code, ConnectError } from "@connectrpc/connect";
import type { Client } from "@parley/client";
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
  way.drop?.(who);
  await client.forget().catch(() => {}); // there was no storage
  return told;
}
