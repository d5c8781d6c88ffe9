// Pictures of buttons; what they mean stands beside them for screen readers.
import { initials } from "./format";

const paths = {
  back: "M15 5l-7 7 7 7",
  plus: "M12 5v14M5 12h14",
  send: "M4 12h15M13 6l6 6-6 6",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  close: "M6 6l12 12M18 6L6 18",
  out: "M14 4h5v16h-5M10 8l-4 4 4 4M6 12h9",
  muted: "M4 4l16 16M8 8v4l-2 4h10M12 4a4 4 0 0 1 4 4v4M10 20h4",
  person: "M12 4a4 4 0 1 1 0 8a4 4 0 0 1 0-8M4 20c1-4 4-5 8-5s7 1 8 5",
  down: "M12 5v14M6 13l6 6 6-6",
  sending: "M12 4a8 8 0 1 1 0 16a8 8 0 0 1 0-16M12 8v4l3 2",
  sent: "M6 13l4 4 8-10",
  read: "M2 13l4 4 8-10M11 16l1 1 8-10",
  failed: "M12 4a8 8 0 1 1 0 16a8 8 0 0 1 0-16M12 8v5M12 16h.01",
} as const;

export function Icon({ name }: { name: keyof typeof paths }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={paths[name]} />
    </svg>
  );
}

const hues = 12;

/** The initials of a name, in a colour that the person or the group always has. */
export function Avatar({ id, name }: { id: string; name: string }) {
  let hash = 0;
  for (const c of id) hash = (hash * 31 + c.codePointAt(0)!) >>> 0;
  return (
    <span class={`avatar hue${hash % hues}`} aria-hidden="true">
      {initials(name)}
    </span>
  );
}
