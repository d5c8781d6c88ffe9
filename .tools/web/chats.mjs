// Two people who chat, over a death of the server and times without a network; a group; keys alone.
import assert from "node:assert/strict";
import {
  accessible,
  allSent,
  asDemo,
  breakStorage,
  desktop,
  live,
  newGroup,
  openTab,
  origin,
  phone,
  post,
  rest,
  say,
  server,
  shot,
  shows,
  signedIn,
  startServer,
  stored,
  visit,
} from "./harness.mjs";

/** Two people come in by one click each and chat; the server dies while one of them writes. */
export async function twoPeople() {
  const { alice, bob } = await meet();
  const expected = ["hello", "see https://example.com/a?b=c."];
  for (const text of expected) await say(alice, text);
  const row = bob.getByRole("link", { name: /alice.*2 unread/s });
  await row.waitFor();
  await accessible(bob, "list-phone");
  await row.click();
  await shows(bob, expected);
  await alice.waitForFunction(() => document.querySelectorAll(".mine small .read").length === 2);
  assert.equal(await alice.locator('.log [role="status"]').textContent(), "Your last message: Read");
  assert.equal(await bob.locator(".bubble a").getAttribute("href"), "https://example.com/a?b=c");
  await say(bob, "hi\u00a0<b>alice</b>");
  expected.push("hi\u00a0<b>alice</b>");
  for (const tab of [alice, bob]) await shows(tab, expected);
  await accessible(bob, "chat-phone");
  await bob.getByRole("link", { name: "Back to the chats" }).click();
  await bob.getByRole("link", { name: /alice/ }).waitFor();
  assert.equal(await bob.getByText("unread").count(), 0);

  await server.kill();
  await alice.getByText("No connection.").waitFor();
  for (const text of ["one", "two", "three"]) {
    expected.push(text);
    await say(alice, text);
  }
  await shows(alice, expected);
  await accessible(alice, "offline");
  await alice.reload(); // the page is kept in the browser
  await shows(alice, expected);
  await startServer();
  await allSent(alice);
  await bob.getByRole("link", { name: /alice/ }).click();
  for (const tab of [alice, bob]) await shows(tab, expected);
  await alice.reload();
  await shows(alice, expected);
  await accessible(alice, "chat");
  return { alice, bob };
}

/** A chat of both, which one of them begins. */
async function meet() {
  const alice = await visit(desktop);
  await accessible(alice, "sign-in");
  await alice.evaluate(() => navigator.serviceWorker.ready.then(() => {}));
  await asDemo(alice, "alice");
  await shot(alice, "no-chats");
  const second = await openTab(alice.context()); // of the same browser, for the other person
  await asDemo(second, "bob");
  await second.close();
  const bob = await visit(phone);
  await accessible(bob, "sign-in-phone");
  await asDemo(bob, "bob");
  await shot(bob, "no-chats-phone");
  await alice.getByRole("button", { name: "New chat" }).click();
  await alice.getByLabel("Person", { exact: true }).fill("nobody here");
  await accessible(alice, "new-chat");
  await alice.getByLabel("Person", { exact: true }).fill("bob");
  await alice.getByRole("button", { name: "Begin" }).click();
  await alice.getByRole("heading", { name: "bob" }).waitFor();
  return { alice, bob };
}

/** A group by those who may: named, with members and roles, muted, archived, left. */
export async function group({ alice, bob }) {
  await alice.getByRole("button", { name: "New chat" }).click();
  await alice.getByLabel("Group", { exact: true }).check();
  await alice.getByLabel("Name of the group").fill("Tea");
  await alice.getByLabel("People, with commas").fill("bob, nobody");
  await alice.getByRole("button", { name: "Begin" }).click();
  await alice.locator("dialog .error:not(:empty)").waitFor();
  await shot(alice, "new-chat-refused");
  await alice.getByLabel("People, with commas").fill("bob");
  await alice.getByRole("button", { name: "Begin" }).click();
  await alice.getByRole("heading", { name: "Tea" }).waitFor();
  await alice.getByRole("button", { name: /^About / }).click();
  await alice.getByLabel("Name", { exact: true }).fill("Tea & cake");
  await alice.getByRole("button", { name: "Rename" }).click();
  await alice.getByRole("heading", { name: "Tea & cake" }).first().waitFor();
  await alice.getByRole("button", { name: "Make an admin of bob" }).click();
  await alice.getByRole("button", { name: "Make a plain member of bob" }).waitFor();
  await alice.getByRole("button", { name: "Mute", exact: true }).click();
  await alice.getByRole("button", { name: "Unmute" }).waitFor();
  await alice.getByRole("button", { name: "Archive", exact: true }).click();
  await alice.getByRole("button", { name: "Take out of the archive" }).waitFor();
  await accessible(alice, "about");
  await alice.keyboard.press("Escape");
  assert.equal(await alice.getByRole("link", { name: /Tea & cake/ }).count(), 0, "it is put away");
  await alice.getByLabel("Search chats by name").fill("CAKE");
  await alice.getByRole("link", { name: /Tea & cake/ }).waitFor();
  await shot(alice, "search");
  await alice.getByLabel("Search chats by name").fill("");

  await bob.getByRole("link", { name: "Back to the chats" }).click();
  await bob.getByRole("link", { name: /Tea & cake/ }).click();
  await bob.getByRole("button", { name: /^About / }).click();
  await accessible(bob, "about-phone");
  await bob.getByRole("button", { name: "Leave" }).click();
  await bob.getByRole("link", { name: /alice/ }).waitFor();
  await bob.getByRole("link", { name: /Tea & cake/ }).waitFor({ state: "detached" });
}

/** Without a network somebody writes; then the other one is removed from the chat that is open. */
export async function away({ alice, bob }) {
  const chatId = await newGroup("alice", "Walk", ["bob"]);
  for (const tab of [alice, bob]) await tab.goto(`${origin}/#/${chatId}`);
  await alice.getByRole("heading", { name: "Walk" }).waitFor();
  await alice.context().setOffline(true); // which leaves the stream that is open
  const expected = ["at", "two", "by", "the", "lake"];
  for (const text of expected) await say(alice, text);
  await shows(alice, expected);
  await alice.getByText("No connection.").waitFor();
  assert.equal(await alice.locator(".bubble.sending").count(), expected.length);
  await shot(alice, "sending");
  await alice.context().setOffline(false);
  await allSent(alice);
  await alice.getByText("No connection.").waitFor({ state: "detached" });
  for (const tab of [alice, bob]) await shows(tab, expected);
  assert.deepEqual(await stored("bob", chatId), expected, "nothing is lost, nothing is there twice");

  await rest("alice", "DELETE", `/chats/${chatId}/members/bob`);
  await bob.getByText("alice removed you from Walk.").waitFor();
  await accessible(bob, "removed-phone");
  await bob.getByRole("link", { name: "Back to the chats" }).click();
  await bob.getByRole("link", { name: /alice/ }).waitFor();
}

/** Five messages are written during a minute without a network, after which the server has ended the stream. */
export async function minuteOffline() {
  const chatId = await newGroup("otto", "Train", ["olga"]);
  const otto = await signedIn("otto", phone, `/#/${chatId}`);
  await otto.getByText("The beginning of the chat").waitFor();
  await otto.context().setOffline(true);
  const written = ["we", "are", "in", "a", "tunnel"];
  for (const text of written) await say(otto, text);
  for (let n = 0; n < 3; n++) await post("olga", chatId, `are you there? ${n}`);
  await otto.waitForTimeout(60_000);
  assert.equal(await otto.locator(".bubble.sending").count(), written.length);
  await otto.context().setOffline(false);
  await allSent(otto);
  const expected = [0, 1, 2].map((n) => `are you there? ${n}`).concat(written);
  await shows(otto, expected);
  assert.deepEqual(await stored("olga", chatId), expected);
  await otto.context().close();
}

/** With keys alone: to a chat, a message, and back to the list. */
export async function keys({ alice }) {
  await alice.getByLabel("Search chats by name").focus();
  await alice.keyboard.press("Tab");
  await alice.keyboard.press("ArrowDown");
  await alice.keyboard.press("ArrowUp");
  await alice.keyboard.press("ArrowDown"); // not the one that is open
  await alice.keyboard.press("Enter");
  await alice.getByLabel("Message", { exact: true }).waitFor();
  await alice.waitForFunction(() => document.activeElement?.tagName === "TEXTAREA");
  await alice.keyboard.type("by keys");
  await alice.keyboard.press("Enter");
  await alice.getByText("by keys", { exact: true }).last().waitFor();
  await allSent(alice);
  await alice.keyboard.press("Escape");
  await alice.getByText("Choose a chat").waitFor();
}

/** A message that the server refuses is shown so, and can be sent again once nothing is in its way. */
export async function refused() {
  await rest("nils", "GET", "/chats");
  const { overview } = await rest("nora", "POST", "/chats", { type: "CHAT_TYPE_DIRECT", memberIds: ["nils"] });
  const { chatId } = overview.chat;
  const nora = await signedIn("nora", phone, `/#/${chatId}`);
  await nora.getByText("The beginning of the chat").waitFor();
  await rest("nils", "POST", "/blocks", { userId: "nora" });
  for (const text of ["first", "second"]) await say(nora, text);
  const kept = nora.locator("li", { has: nora.locator(".bubble.failed") });
  await kept.nth(1).waitFor();
  await nora.getByText("You may not write here.").first().waitFor();
  await accessible(nora, "refused-phone");
  await kept.filter({ hasText: "second" }).getByRole("button", { name: "Delete" }).click();
  await shows(nora, ["first"]);
  await rest("nils", "DELETE", "/blocks/nora");
  await kept.getByRole("button", { name: "Send again" }).click();
  await allSent(nora);
  await shows(nora, ["first"]);
  assert.deepEqual(await stored("nils", chatId), ["first"]);
  await nora.context().close();
}

/** A browser that stores nothing more: the page says so and keeps what is written, until it can be stored. */
export async function storageFails() {
  const chatId = await newGroup("sara", "Disk", ["sten"]);
  const sara = await signedIn("sara", desktop, `/#/${chatId}`);
  await sara.getByText("The beginning of the chat").waitFor();
  await breakStorage(sara);
  const field = sara.getByLabel("Message", { exact: true });
  const write = async (text) => {
    await field.fill(text);
    await field.press("Enter");
  };
  await write("before it is noticed");
  await sara.getByText("This browser cannot store the chats.").waitFor();
  await write("after it");
  assert.equal(await field.inputValue(), "after it");
  await sara.evaluate(() => window.repair());
  await sara.getByRole("button", { name: "Try again" }).click();
  await live(sara);
  await shows(sara, ["before it is noticed"]);
  await field.press("Enter");
  await shows(sara, ["before it is noticed", "after it"]);
  await allSent(sara);
  assert.deepEqual(await stored("sten", chatId), ["before it is noticed", "after it"]);
  await sara.context().close();
}
