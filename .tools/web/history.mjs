// A chat of ten thousand messages, scrolled to its beginning and back.
import assert from "node:assert/strict";
import { keeps } from "./codes.mjs";
import { accessible, newGroup, post, signedIn } from "./harness.mjs";

const total = 10_000;
const early = 1000; // messages that are loaded when memory is looked at first, and as many as stay after all
const late = 9000;
const mostPerMessage = 400; // bytes of memory, between the two, for who is at the beginning
const mostRows = 160; // messages on the page

export async function history() {
  const { chatId, places } = await longChat();
  const tab = await signedIn("hana", undefined, `/#/${chatId}`);
  await tab.locator(".bubble").first().waitFor();
  const memory = await meter(tab);
  await tab.evaluate(watch, places);

  const measured = [];
  for (const loaded of [early, late, total]) {
    await tab.evaluate((n) => window.scrollUntil(n), loaded);
    measured.push(await memory());
  }
  await tab.locator(".scroller").evaluate((box) => (box.scrollTop = 0));
  await tab.getByText("The beginning of the chat").waitFor();
  await tab.evaluate(() => window.scrollDown());
  const { seen, most, faults } = await tab.evaluate(() => window.report());
  assert.deepEqual(faults, [], "messages are not in order, or there twice");
  assert.equal(seen, total, "messages were seen");
  assert.ok(most <= mostRows, `${most} messages were on the page at once`);
  for (let n = 0; n < 600 && (await keeps(tab)).messages > early; n++) await tab.waitForTimeout(100);
  const [before, after] = measured;
  const back = await memory();
  const factor = back.heap / before.heap;
  assert.ok(factor <= 1.2, `back at the end the page takes ${factor.toFixed(2)} times the memory that it took before`);
  const perMessage = Math.round((after.heap - before.heap) / (late - early));
  assert.ok(perMessage <= mostPerMessage, `each message takes ${perMessage} bytes that are not freed`);
  assert.ok(after.nodes <= 1.2 * before.nodes, `the page grew from ${before.nodes} nodes to ${after.nodes}`);

  await tab.evaluate((place) => window.scrollUpTo(place), total - 2 * early); // what was dropped comes again
  await tab.getByRole("button", { name: "To the last message" }).click();
  await tab.waitForFunction(() => {
    const box = document.querySelector(".scroller");
    return box.scrollHeight - box.scrollTop - box.clientHeight < 5;
  });
  await accessible(tab, "history");
  await tab.context().close();
}

/** A chat with messages sent many at once, and of each the place where it must be. */
async function longChat() {
  const chatId = await newGroup("hana", "Long", ["hugo"]);
  const places = [];
  let next = 0;
  const sender = async () => {
    for (let n; (n = next++) < total; ) {
      const { sequence } = await post(n % 3 ? "hugo" : "hana", chatId, `message ${n}`);
      places[n] = Number(sequence);
    }
  };
  await Promise.all(Array.from({ length: 64 }, sender));
  return { chatId, places };
}

/** Looks at the page's memory, without what is garbage. */
async function meter(tab) {
  const page = await tab.context().newCDPSession(tab);
  return async () => {
    for (let i = 0; i < 2; i++) await page.send("HeapProfiler.collectGarbage");
    const { usedSize: heap } = await page.send("Runtime.getHeapUsage");
    const { nodes } = await page.send("Memory.getDOMCounters");
    return { heap, nodes };
  };
}

/** In the page: scrolls, and looks at what is there after each step. */
function watch(places) {
  const box = document.querySelector(".scroller");
  const seen = new Uint8Array(places.length + 1);
  const faults = [];
  let count = 0;
  let most = 0;
  const look = () => {
    const shown = [...box.querySelectorAll(".text")].map((e) => places[e.textContent.split(" ")[1]]);
    most = Math.max(most, shown.length);
    for (const [i, place] of shown.entries()) {
      if (i && place !== shown[i - 1] + 1 && faults.length < 5) faults.push([shown[i - 1], place]);
      if (!seen[place]) count++;
      seen[place] = 1;
    }
    return shown;
  };
  const atEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < 5;
  const frame = () => new Promise((done) => setTimeout(done, 0));
  const step = async (to, over) => {
    let [moved, first] = [performance.now(), 0];
    for (let shown = look(); !over(shown); shown = look()) {
      if (shown[0] !== first) [moved, first] = [performance.now(), shown[0]];
      if (performance.now() > moved + 60_000) throw new Error(`nothing moves: ${count} seen`);
      box.scrollTop = to();
      await frame();
    }
  };
  window.scrollUntil = (n) => step(() => 0, () => count >= n);
  window.scrollUpTo = (place) => step(() => 0, (shown) => shown[0] <= place);
  window.scrollDown = () => step(() => box.scrollHeight, (shown) => shown.at(-1) === places.length && atEnd());
  window.report = () => ({ seen: count, most, faults });
}

/** A chat that is opened and left again and again while it scrolls: nothing throws. */
export async function leftWhileScrolling() {
  const chatId = await newGroup("hedi", "Left", ["hans"]);
  for (let n = 0; n < 60; n++) await post("hans", chatId, `message ${n}`);
  const tab = await signedIn("hedi", undefined, `/#/${chatId}`);
  await tab.locator(".bubble").first().waitFor();
  const opened = await tab.evaluate(async (path) => {
    const wait = (ms) => new Promise((done) => setTimeout(done, ms));
    let opened = 0;
    for (let n = 0; n < 40; n++) {
      location.hash = "";
      await wait(30);
      location.hash = path;
      await wait(20 + n);
      const box = document.querySelector(".scroller");
      if (!box) continue;
      opened++;
      box.scrollTop = box.scrollHeight / 2;
      location.hash = ""; // the scroll event comes later
    }
    await wait(100);
    return opened;
  }, `/${chatId}`);
  assert.ok(opened > 20, `the chat was open only ${opened} times`);
  await tab.context().close();
}
