// Elapsed time, for waits.

const jump = 1000; // a difference of two clocks below it is one of their precision
const most = 24 * 3_600_000; // that one jump counts

let steady = performance.now();
let lead = Date.now() - steady; // of the wall time
let at = Date.now();

/**
 * Elapsed time in milliseconds, from any start. A correction of the device's clock does not take it back. The monotonic
 * clock may stand still while the device sleeps. So a jump ahead of the wall time counts, but at most a day of it:
 * a clock that was years behind makes no message old.
 */
export function elapsed(): number {
  const now = performance.now();
  const jumped = Date.now() - now - lead;
  at += now - steady + (jumped > jump ? Math.min(jumped, most) : 0);
  steady = now;
  lead += jumped;
  return at;
}
