// A dialog in front of the page: the browser keeps the focus in it and closes it on Escape.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { errorText } from "./format";
import { Icon } from "./icons";

interface Props {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

export function Dialog({ title, onClose, children }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="dialog-title">
      <header>
        <h2 id="dialog-title" dir="auto">{title}</h2>
        <button class="round" aria-label="Close" title="Close" onClick={() => dialog.current?.close()}>
          <Icon name="close" />
        </button>
      </header>
      {children}
    </dialog>
  );
}

/** Runs one change at a time and tells what went wrong with the last one. */
export function useChange() {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const run = async (change: () => Promise<unknown>): Promise<boolean> => {
    if (busy) return false;
    setBusy(true);
    setError("");
    try {
      await change();
      return true;
    } catch (e) {
      setError(errorText(e));
      return false;
    } finally {
      setBusy(false);
    }
  };
  const alert = (
    <p role="alert" class="error">
      {error}
    </p>
  );
  return { busy, run, alert };
}
