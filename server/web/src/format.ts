// Names, times and texts as they are shown.
import { type Timestamp, timestampMs } from "@bufbuild/protobuf/wkt";
import type { ChatView } from "@parley/client";

const timeOfDay = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit" });
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "short" });
const shortDate = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const dateOnly = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });
const longDate = new Intl.DateTimeFormat(undefined, {
  weekday: "long",
  day: "numeric",
  month: "long",
  year: "numeric",
});
const day = 86_400_000;

export const shortDay = (ms: number) => dateOnly.format(ms);

const midnight = (ms: number) => new Date(ms).setHours(0, 0, 0, 0);

export const clock = (ms: number) => timeOfDay.format(ms);

export const sameDay = (a: number, b: number) => midnight(a) === midnight(b);

/** The day of a message, above the first of it. */
export function dayLine(ms: number, now = Date.now()): string {
  if (sameDay(ms, now)) return "Today";
  if (sameDay(ms, now - day)) return "Yesterday";
  return longDate.format(ms);
}

/** When a chat last changed, in the list. */
export function recently(ms: number, now = Date.now()): string {
  if (sameDay(ms, now)) return clock(ms);
  return now - ms < 6 * day ? weekday.format(ms) : shortDate.format(ms);
}

export const ms = (t: Timestamp | undefined) => (t ? timestampMs(t) : 0);

/** The other one of two. */
export const otherOf = ({ chat }: ChatView, me: string): string | undefined =>
  chat?.directUserIds.find((id) => id !== me) ?? chat?.directUserIds[0];

/** A group's name, or that of the other one of two. */
export function titleOf(view: ChatView, me: string, name: (userId: string) => string): string {
  const other = otherOf(view, me);
  return view.chat?.name || (other && name(other)) || view.chatId;
}

export const isMuted = ({ state }: ChatView, now = Date.now()) => ms(state?.mutedUntil) > now;

// Firefox has Intl.Segmenter from version 125 on. Earlier versions split texts at code points.
const segmenter = "Segmenter" in Intl ? new Intl.Segmenter() : undefined;

/** The characters of a text as people count them. */
export const graphemes = (text: string): string[] =>
  segmenter ? Array.from(segmenter.segment(text), (s) => s.segment) : [...text];

const preview = 100; // characters
const cut = 128; // bytes of a message that the server has in the list

/** The beginning of a message in one line. The last character of what the server has cut may be a part of one. */
export function beginning(text: string): string {
  const long = new TextEncoder().encode(text).length > cut - 4;
  const all = graphemes(text.slice(0, 2048).replace(/\s+/g, " ").trim());
  if (all.length <= preview && !long) return all.join("");
  return `${all.slice(0, Math.min(preview, all.length - 1)).join("").trimEnd()}…`;
}

/** The first letters of the first and the last word of a name. */
export function initials(name: string): string {
  const words = name.split(/[\s_-]+/).filter((word) => /[\p{L}\p{N}]/u.test(word));
  const firsts = [words[0], words.length > 1 ? words.at(-1) : ""].map((word) => graphemes(word ?? "")[0] ?? "");
  return firsts.join("").toUpperCase() || graphemes(name.trim())[0] || "?";
}

export interface Part {
  text: string;
  href?: string;
}

// With bounds as in RFC 5321: without them a long word takes time in the square of its length.
const mail = /[\p{L}\p{N}._%+-]{1,64}@[\p{L}\p{N}-]{1,63}(?:\.[\p{L}\p{N}-]{1,63}){1,8}/u;
const address = new RegExp(`https?://[^\\s<>"]+|(?<![\\p{L}\\p{N}@./-])www\\.[^\\s<>"]+|${mail.source}`, "giu");

function hrefOf(link: string): string | undefined {
  const href = /^https?:/i.test(link) ? link : /^www\./i.test(link) ? `https://${link}` : `mailto:${link}`;
  return URL.canParse(href) && !/^www\.[^.]*$/i.test(link) ? href : undefined;
}

/** A text with its links; what ends a sentence is no part of a link. */
export function partsOf(text: string): Part[] {
  const parts: Part[] = [];
  let at = 0;
  for (const { 0: found, index } of text.matchAll(address)) {
    let link = found.replace(/[.,;:!?'*]+$/, "");
    if (link.endsWith(")") && !link.includes("(")) link = link.slice(0, -1);
    const href = hrefOf(link);
    if (!href) continue;
    if (index > at) parts.push({ text: text.slice(at, index) });
    parts.push({ text: link, href });
    at = index + link.length;
  }
  if (at < text.length) parts.push({ text: text.slice(at) });
  return parts;
}
