// The user's data: all of it in a file, and the end of the account.
import { toJson } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { type ExportDataResponse, ExportDataResponseSchema } from "#gen/parley/user/v1/user_service_pb.js";
import type { Client } from "@parley/client";
import { useEffect, useRef, useState } from "preact/hooks";
import { Dialog, useChange } from "./dialog";

interface Props {
  client: Client;
  onDelete: (confirmed: string) => Promise<void>;
}

export function Data({ client, onDelete }: Props) {
  const [deleting, setDeleting] = useState(false);
  return (
    <section aria-labelledby="data">
      <h3 id="data">Your data</h3>
      <Export client={client} />
      <p class="row">
        <button class="danger" onClick={() => setDeleting(true)}>
          Delete the account…
        </button>
      </p>
      {deleting && <Delete client={client} onDelete={onDelete} onClose={() => setDeleting(false)} />}
    </section>
  );
}

function Export({ client }: { client: Client }) {
  const { busy, run, alert } = useChange();
  const [count, setCount] = useState<number>();
  const closed = useRef(new AbortController()); // the dialog is, perhaps because the user signs out
  useEffect(() => () => closed.current.abort(), []);
  const load = () =>
    run(async () => {
      setCount(0);
      try {
        const { signal } = closed.current;
        const content = await exportOf(client, setCount, signal);
        if (!signal.aborted) save(`parley-${client.userId}.json`, content);
      } finally {
        setCount(undefined);
      }
    });
  return (
    <>
      <p class="row">
        <button disabled={busy} onClick={load}>
          Download your data
        </button>
        <small role="status">{count !== undefined && `${count} records`}</small>
      </p>
      <small>Your profile, settings, addresses, lists and the messages that you have sent, as JSON.</small>
      {alert}
    </>
  );
}

const tries = 5; // of a stream that breaks, each after the last record

/** All that the server has about the user, as a list in JSON. */
async function exportOf({ api }: Client, tell: (count: number) => void, signal: AbortSignal): Promise<Blob> {
  const parts: string[] = [];
  let cursor = "";
  for (let left = tries; ; ) {
    try {
      for await (const part of api.users.exportData({ cursor }, { signal })) {
        if (part.record.case === "end") {
          return new Blob(["[\n", parts.join(",\n"), "\n]\n"], { type: "application/json" });
        }
        parts.push(recordOf(part));
        cursor = part.cursor;
        left = tries;
        if (parts.length % 100 === 0) tell(parts.length);
      }
    } catch (error) {
      const { code } = ConnectError.from(error);
      const again = code === Code.Unavailable || code === Code.Unknown || code === Code.Aborted;
      if (!again || signal.aborted) throw error;
      if (--left === 0) throw error;
      await new Promise((done) => setTimeout(done, 1000));
      continue;
    }
    if (--left === 0) throw new ConnectError("the export broke off", Code.DataLoss);
  }
}

function recordOf(part: ExportDataResponse): string {
  const { cursor: _, ...record } = toJson(ExportDataResponseSchema, part) as Record<string, unknown>;
  return JSON.stringify(record);
}

function save(name: string, content: Blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser has it by then
}

function Delete({ client, onDelete, onClose }: Props & { onClose: () => void }) {
  const { userId } = client;
  const [typed, setTyped] = useState("");
  const { busy, run, alert } = useChange();
  const submit = (e: SubmitEvent) => {
    e.preventDefault();
    if (typed === userId) void run(() => onDelete(typed));
  };
  return (
    <Dialog title="Delete the account?" onClose={onClose} stays={busy}>
      <form onSubmit={submit}>
        <p>
          Your profile, handle and settings go at once, your memberships within minutes. What you have sent stays in its
          chats, as that of a deleted account. Nobody can undo this.
        </p>
        <label for="confirm-id">
          To confirm, type your id: <code>{userId}</code>
        </label>
        <input
          id="confirm-id"
          required
          autofocus
          autocomplete="off"
          autocapitalize="none"
          spellcheck={false}
          value={typed}
          onInput={(e) => setTyped(e.currentTarget.value.trim())}
        />
        {alert}
        <p class="row end">
          <button type="button" disabled={busy} onClick={onClose}>
            Keep it
          </button>
          <button class="danger" disabled={busy || typed !== userId}>
            Delete the account
          </button>
        </p>
      </form>
    </Dialog>
  );
}
