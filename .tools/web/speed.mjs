// How soon the page is of use.
import assert from "node:assert/strict";
import { desktop, newBrowser, newGroup, origin, post, remember } from "./harness.mjs";

/**
 * Milliseconds from the address to the first message, in a browser that knows nothing but the token; of three loads the
 * median.
 */
export async function firstMessage() {
  const chatId = await newGroup("cora", "Cold", ["carl"]);
  await post("carl", chatId, "first");
  const taken = [];
  for (let n = 0; n < 3; n++) {
    const context = await newBrowser(desktop);
    await remember(context, "cora");
    await context.addInitScript(() => {
      new MutationObserver((_, observer) => {
        if (!document.querySelector(".bubble .text")) return;
        window.firstMessage = performance.now();
        observer.disconnect();
      }).observe(document, { childList: true, subtree: true });
    });
    const tab = await context.newPage();
    let reads = 0;
    tab.on("request", (r) => (reads += r.url().endsWith("/ListMessages")));
    await tab.goto(`${origin}/#/${chatId}`);
    await tab.waitForFunction(() => window.firstMessage);
    taken.push(await tab.evaluate(() => Math.round(window.firstMessage)));
    assert.equal(reads, 1, "the messages are read once");
    await context.close();
  }
  return taken.sort((a, b) => a - b)[1];
}
