// Exceptions of an app's own code, which do not stop the client.

/** Reports an exception as uncaught; in Node.js on the console, because an uncaught exception ends the process. */
export function report(error: unknown) {
  if (typeof reportError === "function") reportError(error);
  else console.error("parley: uncaught:", error);
}

/** Tells developers of something that the user does not see. */
export function warn(text: string) {
  console.warn(`parley: ${text}`);
}

/** Calls functions of an app. An exception of one is reported, and the others are called. */
export function callEach(list: Iterable<() => void>) {
  for (const f of [...list]) {
    try {
      f();
    } catch (error) {
      report(error);
    }
  }
}
