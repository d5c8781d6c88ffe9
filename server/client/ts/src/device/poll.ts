// Polling. Some proxies hold each response back until it ends, although the server asks them not to. Behind one, streams
// open and bring nothing, while calls work. Then the machine polls: Sync with the token shows which chats have changed, and what the
// stream would have brought is read as after any gap.
import { lastBackoff, type Machine } from "./machine.js";
import { noStream } from "./stream.js";

const helloTime = 15_000; // within which a stream must begin: its hello is sent at once
const shortLife = 5000; // a stream that ended sooner was refused, not held back
const maxMute = 2; // streams in a row that brought nothing
const firstPoll = 2000;
const lastPoll = 12_000; // and a quarter more
const streamsAgain = 300_000; // between two streams that are tried while the machine polls

export interface Polling {
  mute: number; // streams in a row that brought nothing
  on: boolean;
  works: boolean; // a poll was answered
  up: boolean; // so was the last: the device is connected in this way
  again: boolean; // poll again at once: the one under way may be older than what the device has changed
  wait: number; // between the last two; 0 before the first
  at: number; // of the next poll
}

export const noPolling = (): Polling => ({ mute: 0, on: false, works: false, up: false, again: false, wait: 0, at: 0 });

/** How long the stream may bring nothing. */
export const silence = (m: Machine) =>
  m.stream.streamId === "" ? Math.min(helloTime, m.cfg.silence) : m.cfg.silence;

/** Drops the stream; the next one is opened after a wait. Polls begin if streams open and bring nothing. */
export function retry(m: Machine, now: number, wait: number) {
  const { id, streamId, heard, tries } = m.stream;
  if (id !== 0 && streamId === "" && now - heard >= Math.min(shortLife, m.cfg.silence)) m.poll.mute++;
  if (!m.poll.on && m.poll.mute >= maxMute) {
    m.poll = { ...noPolling(), on: true, at: now };
    m.sync.need ||= m.session.token === "";
  }
  m.stream = noStream(tries + 1);
  connectAfter(m, now, wait);
}

/** Has the next stream opened after a wait. */
export function connectAfter(m: Machine, now: number, wait: number) {
  const { on, up } = m.poll;
  m.stream.connectAt = now + Math.max(wait, up ? streamsAgain : on ? lastBackoff : 0);
}

/** Plans the next poll after one that succeeded, sooner if it brought something. */
export function polled(m: Machine, news: boolean) {
  const p = m.poll;
  if (!p.on) return;
  const now = m.cfg.clock();
  if (!p.works) {
    p.works = true;
    m.stream.connectAt = now; // perhaps the network was away, and a stream begins now
  }
  if (!p.up) {
    p.up = true;
    m.events.push({ connected: true, polling: true });
  }
  p.wait = news ? firstPoll : Math.min(Math.max(p.wait * 1.5, firstPoll), lastPoll);
  // A quarter sooner or later, so that clients behind one proxy spread.
  p.at = now + (0.75 + m.cfg.random() / 2) * p.wait;
  if (p.again) hurryPoll(m);
}

/**
 * Ends polls that never worked: the network is away, and with it the streams. While others fail, streams are tried more
 * often.
 */
export function pollFailed(m: Machine) {
  if (!m.poll.on) return;
  const now = m.cfg.clock();
  m.poll.up = false;
  if (!m.poll.works) {
    m.poll = noPolling();
    connectAfter(m, now, m.backoff(m.stream.tries));
  } else {
    m.stream.connectAt = Math.min(m.stream.connectAt, now + lastBackoff);
  }
}

/** Has the next poll made at once, because the device has changed something. */
export function hurryPoll(m: Machine) {
  if (!m.poll.on) return;
  m.poll.wait = 0;
  m.poll.at = m.cfg.clock();
  m.poll.again = m.sync.call !== 0;
}
