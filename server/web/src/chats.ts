// The user's chats as a list shows them.
import type { ChatView, Client } from "@parley/client";
import { useEffect, useState } from "preact/hooks";

// Sorting thousands of chats takes milliseconds, and a message that is sent is several changes: they are gathered for
// some of the times that the last sorting took, and all sorting takes a part of the time.
const gather = 5;
const pause = 100;

/** The user's chats, last changed first. Few chats are up to date at once; ten thousand may be a second behind. */
export function useChatList(client: Client): readonly ChatView[] {
  const [chats, setChats] = useState<readonly ChatView[]>([]);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let taken = 0;
    let next = 0;
    const read = () => {
      timer = undefined;
      const began = performance.now();
      setChats(client.chats());
      const ended = performance.now();
      taken = ended - began;
      next = ended + pause * taken;
    };
    const changed = () => {
      if (timer !== undefined) return;
      const wait = Math.max(gather * taken, next - performance.now());
      if (wait < 1) read();
      else timer = setTimeout(read, wait);
    };
    read();
    const stop = client.subscribe(changed);
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [client]);
  return chats;
}
