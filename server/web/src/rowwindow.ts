// Which rows of a list are on the page: those in sight and some around them, however long the list is.
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const around = 12; // rows beyond those in sight
const step = 6; // rows by which the window moves

export interface RowWindow {
  /** What scrolls; the list in it is as high as all rows are. */
  scroller: RefObject<HTMLDivElement | null>;
  onScroll: () => void;
  /** Indexes of the first row and of the one after the last. */
  from: number;
  to: number;
}

/**
 * A window on rows of one height. Rows that change places leave those in sight where they are, unless the beginning of
 * the list is in sight. A list of another subject begins at its first row.
 */
export function useRowWindow(ids: readonly string[], subject: string): RowWindow {
  const scroller = useRef<HTMLDivElement | null>(null);
  const [{ from, to }, setRange] = useState({ from: 0, to: 3 * around });
  const shown = useRef({ ids, subject });
  const look = () => {
    const box = scroller.current;
    const height = rowHeight(box, ids.length);
    if (!box || !height || !box.clientHeight) return; // it is not on the page, or out of sight
    const first = Math.floor(box.scrollTop / height / step) * step;
    const inSight = Math.ceil(box.clientHeight / height / step) * step + step;
    const next = { from: Math.max(0, first - around), to: first + inSight + around };
    if (next.from !== from || next.to !== to) setRange(next);
  };
  const looked = useRef(look);
  looked.current = look;
  useLayoutEffect(() => {
    const box = scroller.current;
    const before = shown.current;
    shown.current = { ids, subject };
    if (box && before.subject !== subject) {
      box.scrollTop = 0;
    } else if (box && before.ids !== ids && box.scrollTop > 0) {
      const height = rowHeight(box, ids.length);
      const at = Math.floor(box.scrollTop / height);
      const seen = before.ids.slice(at, Math.ceil((box.scrollTop + box.clientHeight) / height));
      box.scrollTop += height * shiftOf(seen, at, ids);
    }
    look();
  }, [ids, subject]);
  useEffect(() => {
    const watch = new ResizeObserver(() => looked.current());
    if (scroller.current) watch.observe(scroller.current);
    return () => watch.disconnect();
  }, []);
  return { scroller, onScroll: look, from: Math.min(from, Math.max(0, ids.length - around)), to };
}

/** Of the list in a box, which is as high as all its rows. */
const rowHeight = (box: HTMLElement | null, rows: number) =>
  rows ? (box?.firstElementChild?.clientHeight ?? 0) / rows : 0;

/** By how many places most of these rows, which began at an index, have moved. */
function shiftOf(rows: readonly string[], at: number, ids: readonly string[]): number {
  const shifts = rows.flatMap((id, i) => {
    const was = at + i;
    const near = [was, was + 1, was - 1].find((n) => ids[n] === id);
    const now = near ?? ids.indexOf(id);
    return now < 0 ? [] : [now - was];
  });
  return shifts.sort((a, b) => a - b)[shifts.length >> 1] ?? 0;
}
