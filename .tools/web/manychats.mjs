// A list of many chats: what a key and a send cost, and that keys and screen readers reach all rows.
import assert from "node:assert/strict";
import { accessible, allSent, live, newGroup, post, rest, say, signedIn } from "./harness.mjs";

const keys = 20;
const sends = 10;
const mostRows = 60; // on the page

/** Somebody with so many groups, the last one created first in the list; returns the ids in the order of creation. */
export async function withChats(user, count) {
  const ids = [await newGroup(user, "Group 0", [`${user}2`])];
  let next = 1;
  const creator = async () => {
    for (let n; (n = next++) < count; ) {
      const group = { type: "CHAT_TYPE_GROUP", name: `Group ${n}`, memberIds: [`${user}2`] };
      ids[n] = (await rest(user, "POST", "/chats", group)).overview.chat.chatId;
    }
  };
  await Promise.all(Array.from({ length: 32 }, creator));
  return ids;
}

/** Milliseconds of the page's thread for a key in the field for messages, and for a message that is sent. */
export async function cost(user, count) {
  const ids = await withChats(user, count);
  const tab = await signedIn(user, undefined, `/#/${ids[count >> 1]}`);
  await live(tab);
  await say(tab, "first");
  await allSent(tab);
  const page = await tab.context().newCDPSession(tab);
  await page.send("Performance.enable", { timeDomain: "threadTicks" });
  const busy = async () => {
    const { metrics } = await page.send("Performance.getMetrics");
    return 1000 * metrics.find(({ name }) => name === "TaskDuration").value;
  };
  const during = async (act) => {
    const before = await busy();
    await act();
    return (await busy()) - before;
  };
  while ((await during(() => tab.waitForTimeout(2000))) > 50); // chats are still stored
  const each = async (times, act) => {
    const all = await during(async () => {
      for (let n = 0; n < times; n++) await act(n);
      await tab.waitForTimeout(1500);
    });
    return Math.round((10 * all) / times) / 10;
  };
  // By the keyboard alone: to look for a field costs the page's thread more than a key does.
  const key = await each(keys, async () => {
    await tab.keyboard.press("x");
    await tab.waitForTimeout(60);
  });
  const send = await each(sends, async (n) => {
    await tab.keyboard.insertText(`message ${n}`);
    await tab.keyboard.press("Enter");
    await tab.waitForTimeout(150);
  });
  await tab.context().close();
  return { key, send };
}

/** Few rows are on the page, and keys reach all; what changes places moves neither the focus nor what is in sight. */
export async function manyChats() {
  const count = 200;
  const ids = await withChats("mona", count);
  const tab = await signedIn("mona");
  await tab.locator(`.chats li[aria-setsize="${count}"]`).first().waitFor();
  const first = tab.locator(".chats [data-chat]").first();
  assert.equal(await first.getAttribute("data-chat"), await chatAt(tab, 1));
  await tab.getByLabel("Search chats by name").focus();
  await tab.keyboard.press("Tab");
  const reached = new Set();
  let most = 0;
  for (let place = 1; place <= count; place++) {
    reached.add(await focusAt(tab, place));
    most = Math.max(most, await tab.locator(".chats li").count());
    await tab.keyboard.press("ArrowDown");
  }
  assert.equal(reached.size, count, "rows were reached by keys");
  assert.ok(most <= mostRows, `${most} rows were on the page at once`);
  await tab.keyboard.press("Home");
  await focusAt(tab, 1);
  await tab.keyboard.press("End");
  await focusAt(tab, count);
  for (let n = 0; n < 5; n++) await tab.keyboard.press("PageUp");
  const id = await focusAt(tab, count - 50);
  await accessible(tab, "many-chats");

  const top = await topOf(tab, id);
  await post("mona2", ids.find((other) => other !== id), "to the top, from elsewhere");
  await tab.locator(`.chats li[aria-posinset="${count - 49}"] [data-chat="${id}"]`).waitFor();
  assert.equal(await focusAt(tab, count - 49), id);
  assert.ok(Math.abs((await topOf(tab, id)) - top) < 2, "what is in sight stays there");
  await post("mona2", id, "to the top, with the focus");
  await tab.locator(`.chats li[aria-posinset="1"] [data-chat="${id}"]`).waitFor();
  assert.equal(await focusAt(tab, 1), id);
  await wheelThrough(tab, count);
  await tab.getByLabel("Search chats by name").fill("group 7");
  await tab.getByRole("link", { name: "Group 77" }).click();
  await tab.getByRole("heading", { name: "Group 77" }).waitFor();
  await tab.context().close();
}

const chatAt = (tab, place) => tab.locator(`.chats li[aria-posinset="${place}"] a`).getAttribute("data-chat");

/** The row at a place of the list comes to have the focus; returns its chat. */
async function focusAt(tab, place) {
  const has = (place) => document.activeElement?.parentElement?.ariaPosInSet === String(place);
  await tab.waitForFunction(has, place);
  return chatAt(tab, place);
}

const topOf = (tab, id) => tab.locator(`.chats [data-chat="${id}"]`).evaluate((a) => a.getBoundingClientRect().top);

/** As a mouse and a screen reader go through the rows: each place is on the page at some time, in order. */
async function wheelThrough(tab, count) {
  const missing = await tab.evaluate(async (count) => {
    const box = document.querySelector(".rows");
    const places = new Set();
    for (box.scrollTop = 0; ; box.scrollTop += box.clientHeight) {
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
      const now = [...box.querySelectorAll("li")].map((li) => Number(li.ariaPosInSet));
      if (now.some((place, i) => i && place <= now[i - 1])) return `out of order: ${now}`;
      for (const place of now) places.add(place);
      if (box.scrollTop + box.clientHeight >= box.scrollHeight - 1) break;
    }
    return count - places.size;
  }, count);
  assert.equal(missing, 0, "rows were not reached by the wheel");
}
