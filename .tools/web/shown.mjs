// What is shown of people and their texts: directions, links, states, names; and what must not flicker.
import assert from "node:assert/strict";
import {
  accessible,
  allSent,
  desktop,
  live,
  newBrowser,
  newGroup,
  openTab,
  origin,
  phone,
  post,
  remember,
  rest,
  say,
  signedIn,
} from "./harness.mjs";

const rename = async (user, displayName) => {
  const { profile } = await rest(user, "GET", `/users/${user}/profile`);
  await rest(user, "PATCH", "/profile", { displayName, etag: profile.etag });
};

async function direct(user, other) {
  for (const id of [user, other]) await rest(id, "GET", "/chats");
  const { overview } = await rest(user, "POST", "/chats", { type: "CHAT_TYPE_DIRECT", memberIds: [other] });
  return overview.chat.chatId;
}

const directionOf = (locator) => locator.first().evaluate((e) => getComputedStyle(e).direction);

/** Texts have their own direction, addresses are links, a message says its state, and senders have initials. */
export async function textsOfPeople() {
  const chatId = await newGroup("rita", "Texts", ["rami", "rolf"]);
  await rename("rami", "رامي خليل");
  await rename("rolf", "Rolf van Dam");
  await post("rami", chatId, "مرحبا، كيف حالك؟ (www.example.com)");
  await post("rolf", chatId, "Write to rolf.d@example.com, or see www.example.org/a?b=c. Not www.x or a@b");
  await post("rolf", chatId, "and https://example.net/x@y.zz/");
  const tab = await signedIn("rita", desktop, `/#/${chatId}`);
  await say(tab, "שלום");
  await allSent(tab);
  const bubble = (text) => tab.locator(".bubble", { hasText: text });
  for (const text of ["مرحبا", "שלום"]) assert.equal(await directionOf(bubble(text).locator(".text")), "rtl", text);
  assert.equal(await directionOf(bubble("Write to").locator(".text")), "ltr");
  const links = await tab.locator(".bubble a").evaluateAll((all) => all.map((a) => a.getAttribute("href")));
  assert.deepEqual(links, [
    "https://www.example.com",
    "mailto:rolf.d@example.com",
    "https://www.example.org/a?b=c",
    "https://example.net/x@y.zz/",
  ]);
  await tab.locator(".bubble .avatar", { hasText: "RD" }).waitFor();
  assert.equal(await tab.locator(".bubble .avatar").count(), 2, "the messages of one sender are together");
  await bubble("שלום").getByRole("img", { name: "Sent" }).waitFor();
  assert.equal(await bubble("שלום").getByText("Sent").count(), 0);
  await tab.keyboard.type("שלום");
  assert.equal(await directionOf(tab.getByLabel("Message", { exact: true })), "rtl");
  await tab.getByRole("button", { name: "About Texts" }).click();
  await tab.getByRole("dialog", { name: "Texts" }).getByText("3 members").waitFor();
  await accessible(tab, "texts");
  await tab.context().close();
}

/** A preview ends with a whole character, and chats of one name can be told apart. */
export async function rowsOfPeople() {
  const family = "👨‍👩‍👧‍👦";
  const groups = [await newGroup("sara", "Same", ["sven"]), await newGroup("sara", "Same", ["sven"])];
  await post("sven", groups[0], family.repeat(12));
  await post("sven", groups[1], "عند الساعة الرابعة");
  for (const user of ["sven", "sofia"]) {
    await post(user, await direct(user, "sara"), "hello");
    await rename(user, "Sam Same");
  }
  const tab = await signedIn("sara", phone);
  const marks = tab.locator(".chats a .name small");
  await marks.nth(3).waitFor();
  const told = await marks.allTextContents();
  assert.equal(new Set(told).size, 4, `they are told apart: ${told}`);
  assert.ok(told.includes("sven") && told.includes("sofia"), `${told}`);
  const previews = tab.locator(".preview > [dir]");
  const cut = await tab.locator(".preview", { hasText: family }).locator("[dir]").textContent();
  assert.match(cut, new RegExp(`^(${family})+…$`, "u"), "whole characters");
  assert.equal(await directionOf(previews.filter({ hasText: "الساعة" })), "rtl");
  await accessible(tab, "rows-phone");
  await tab.getByRole("link", { name: /Sam Same sofia/ }).click();
  await tab.getByRole("button", { name: "About Sam Same" }).click();
  await tab.getByRole("dialog", { name: "Sam Same" }).getByText("sofia").waitFor();
  await tab.context().close();
}

/** In the page: notes each change of a chat's badge, the title and the banner. */
function watch(chatId) {
  window.changes = [];
  const look = () => {
    const badge = document.querySelector(`.chats [href="#/${chatId}"] .count`)?.firstChild?.textContent ?? "0";
    const now = `${badge}, ${document.title}, ${document.querySelector(".connection").textContent}`;
    if (window.changes.at(-1) !== now) window.changes.push(now);
  };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true });
  look();
}

/** What is read is read at once, also where the server is slow to hear of it; a short wait for it is not shown. */
export async function nothingFlickers() {
  const chatId = await newGroup("tess", "Steady", ["tom"]);
  await post("tom", chatId, "one");
  const tab = await signedIn("tess");
  await live(tab);
  await tab.route("**/MarkRead", async (route) => {
    await new Promise((done) => setTimeout(done, 700));
    await route.continue();
  });
  const row = tab.getByRole("link", { name: /Steady/ });
  await row.filter({ hasText: "1 unread" }).waitFor();
  await tab.evaluate(watch, chatId);
  await row.click();
  await tab.locator(".bubble").waitFor();
  await post("tom", chatId, "two");
  await tab.locator(".bubble", { hasText: "two" }).waitFor();
  await tab.keyboard.press("Escape"); // before the server has heard of it
  await tab.waitForTimeout(1500);
  await tab.context().setOffline(true);
  await tab.waitForTimeout(300);
  await tab.context().setOffline(false);
  await tab.waitForTimeout(1200);
  const changes = await tab.evaluate(() => window.changes);
  const badges = changes.map((c) => c.split(", ")[0]).filter((b, i, all) => b !== all[i - 1]);
  assert.deepEqual(badges, ["1", "0"], changes.join(" | "));
  assert.ok(!changes.some((c) => c.includes("No connection")), changes.join(" | "));
  await tab.context().close();
}

/** A skeleton is there until the script is; a file that is dropped does not replace the page. */
export async function skeletonAndDrop() {
  const context = await newBrowser(phone);
  await remember(context, "tess");
  let load;
  const loads = new Promise((done) => (load = done));
  await context.route("**/app/app.js", async (route) => {
    await loads;
    await route.continue();
  });
  const tab = await context.newPage();
  await tab.goto(origin, { waitUntil: "commit" });
  await tab.locator(".bones .chats").waitFor();
  load();
  await live(tab);
  assert.equal(await tab.locator(".bones").count(), 0);
  await context.close();

  const page = await openTab(await newBrowser(desktop));
  const refused = await page.evaluate(() => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File(["x"], "x.txt"));
    return ["dragover", "drop"].map((type) => {
      const event = new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true });
      document.body.dispatchEvent(event);
      return event.defaultPrevented;
    });
  });
  assert.deepEqual(refused, [true, true]);
  await page.context().close();
}

/** What came after an own message that followed what was read is new, and what the own message did not see is unread. */
export async function newLine() {
  const chatId = await direct("nina", "noel");
  await post("noel", chatId, "was read");
  await rest("nina", "POST", `/chats/${chatId}/read`, { sequence: 1 });
  await post("nina", chatId, "own answer");
  await post("noel", chatId, "came later");
  await post("nina", chatId, "written before it came");
  const { overview } = await rest("nina", "GET", `/chats/${chatId}`);
  assert.deepEqual([overview.state.readSequence, overview.state.unreadCount], ["1", "1"]);
  const tab = await signedIn("nina", desktop, `/#/${chatId}`);
  const top = async (text) => (await tab.getByText(text, { exact: true }).last().boundingBox()).y;
  await tab.getByText("New messages", { exact: true }).waitFor();
  const order = await Promise.all(["own answer", "New messages", "came later"].map(top));
  assert.deepEqual(order, [...order].sort((a, b) => a - b), "the line is before the first new message");
}
