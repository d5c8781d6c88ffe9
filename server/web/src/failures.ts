// Messages that the server refused, until their sender sends them again or drops them.
import type { OutboxEntry } from "@parley/client";
import { useEffect, useState } from "preact/hooks";

export interface Failure {
  entry: OutboxEntry;
  reason: string;
}

export class Failures {
  private list: readonly Failure[] = [];
  private readonly listeners = new Set<() => void>();

  add(entry: OutboxEntry, reason: string) {
    this.set([...this.list, { entry, reason }]);
  }

  drop(failure: Failure) {
    this.set(this.list.filter((f) => f !== failure));
  }

  /** Those of a chat, kept up to date. */
  use(chatId: string): readonly Failure[] {
    const [list, show] = useState(this.list);
    useEffect(() => {
      const listener = () => show(this.list);
      listener();
      this.listeners.add(listener);
      return () => void this.listeners.delete(listener);
    }, [this]);
    return list.filter((f) => f.entry.chatId === chatId);
  }

  private set(list: readonly Failure[]) {
    this.list = list;
    for (const l of this.listeners) l();
  }
}
