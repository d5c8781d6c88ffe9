// A dialog in front of the page: the browser keeps the focus in it and closes it on Escape.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { errorText } from "./errors";
import { Icon } from "./icons";

interface Props {
  title: string;
  onClose: () => void;
  /** It cannot be closed now: what it does is under way. */
  stays?: boolean;
  children: ComponentChildren;
}

export function Dialog({ title, onClose, stays = false, children }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId(); // a dialog may stand in front of another one
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={onClose} onCancel={(e) => stays && e.preventDefault()} aria-labelledby={id}>
      <header>
        <h2 id={id} dir="auto">
          {title}
        </h2>
        <button class="round" aria-label="Close" title="Close" disabled={stays} onClick={() => dialog.current?.close()}>
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
