// Text that a person wrote and the server does not have: it survives reloads, refusals and removals.
import assert from "node:assert/strict";
import {
  accessible,
  allSent,
  breakStorage,
  desktop,
  live,
  newGroup,
  openTab,
  origin,
  phone,
  rest,
  say,
  shows,
  signedIn,
  stored,
} from "./harness.mjs";

const field = (tab) => tab.getByLabel("Message", { exact: true });
const failed = (tab) => tab.locator("li", { has: tab.locator(".bubble.failed") });

async function directChat(user, other) {
  for (const id of [user, other]) await rest(id, "GET", "/chats");
  const { overview } = await rest(user, "POST", "/chats", { type: "CHAT_TYPE_DIRECT", memberIds: [other] });
  return overview.chat.chatId;
}

/** Refused messages are there after a reload and in another tab, each until it is deleted or sent again. */
export async function refusedAfterReload() {
  const chatId = await directChat("wim", "wanda");
  const wim = await signedIn("wim", desktop, `/#/${chatId}`);
  await wim.getByText("The beginning of the chat").waitFor();
  await rest("wanda", "POST", "/blocks", { userId: "wim" });
  for (const text of ["first", "second", "third"]) await say(wim, text);
  await failed(wim).nth(2).waitFor();
  await wim.reload();
  await failed(wim).nth(2).waitFor();
  await shows(wim, ["first", "second", "third"]);
  await wim.getByText("You may not write here.").first().waitFor();
  await wim.getByRole("link", { name: /A message was not sent/ }).waitFor();
  await accessible(wim, "refused-after-reload");

  const second = await openTab(wim.context(), `/#/${chatId}`);
  await failed(second).nth(2).waitFor();
  await failed(second).filter({ hasText: "second" }).getByRole("button", { name: "Delete" }).click();
  for (const tab of [wim, second]) await shows(tab, ["first", "third"]);
  await rest("wanda", "DELETE", "/blocks/wim");
  await failed(second).filter({ hasText: "third" }).getByRole("button", { name: "Send again" }).click();
  await second.waitForFunction(() => document.querySelectorAll(".bubble.failed").length === 1);
  await wim.reload();
  await live(wim);
  await shows(wim, ["third", "first"]);
  assert.deepEqual(await stored("wanda", chatId), ["third"]);
  await wim.getByRole("button", { name: "Sign out" }).click();
  await wim.getByText("A message was not sent. It is lost when you sign out.").waitFor();
  await wim.context().close();
}

/** What is being written is there after a reload, by chat, until it is sent or the user signs out. */
export async function draftAfterReload() {
  const [tea, cake] = [await newGroup("dora", "Tea", ["dirk"]), await newGroup("dora", "Cake", ["dirk"])];
  const dora = await signedIn("dora", desktop, `/#/${tea}`);
  await field(dora).fill("a draft\nof two lines");
  await dora.reload(); // before it is written by time
  await dora.waitForFunction(() => document.querySelector("textarea")?.value === "a draft\nof two lines");
  await dora.getByRole("link", { name: /Cake/ }).click();
  await dora.getByRole("heading", { name: "Cake" }).waitFor();
  assert.equal(await field(dora).inputValue(), "");
  await field(dora).fill("with cream");
  await dora.goto(`${origin}/#/${tea}`);
  await dora.getByRole("heading", { name: "Tea" }).waitFor();
  await field(dora).press("Enter");
  await shows(dora, ["a draft\nof two lines"]);
  await allSent(dora);
  await dora.reload();
  await shows(dora, ["a draft\nof two lines"]);
  assert.equal(await field(dora).inputValue(), "");

  await dora.evaluate(() => {
    Storage.prototype.setItem = () => {
      throw new DOMException("full", "QuotaExceededError");
    };
  });
  await field(dora).fill("no room for this");
  await dora.waitForTimeout(500);
  await dora.getByRole("link", { name: /Cake/ }).click();
  await dora.waitForFunction(() => document.querySelector("textarea")?.value === "with cream");
  await dora.getByRole("link", { name: /Tea/ }).click();
  await dora.waitForFunction(() => document.querySelector("textarea")?.value === "no room for this");
  await dora.reload();
  await dora.getByRole("heading", { name: "Tea" }).waitFor();
  await dora.getByRole("button", { name: "Sign out" }).click();
  await dora.getByText("There is a draft. It is lost when you sign out.").waitFor();
  await accessible(dora, "drafts-lost");
  await dora.getByRole("dialog").getByRole("button", { name: "Sign out" }).click();
  await dora.getByRole("heading", { name: "Parley" }).waitFor();
  const drafts = () => Object.keys(localStorage).filter((key) => key.startsWith("parley/draft/"));
  assert.deepEqual(await dora.evaluate(drafts), []);
  await dora.context().close();
}

/** What is being written in one tab stays when the user sends something else in another one. */
export async function draftOfAnotherTab() {
  const tea = await newGroup("doris", "Tea", ["dirk"]);
  const sends = await signedIn("doris", desktop, `/#/${tea}`);
  await sends.getByRole("heading", { name: "Tea" }).waitFor();
  const writes = await openTab(sends.context(), `/#/${tea}`);
  await field(writes).fill("a long text");
  await writes.waitForTimeout(500); // it is stored
  await say(sends, "ok");
  await allSent(sends);
  await writes.reload();
  await writes.waitForFunction(() => document.querySelector("textarea")?.value === "a long text");
  await shows(writes, ["ok"]);
  await sends.context().close();
}

/** A message is a draft again if the page is left before the browser has stored it. */
export async function leftBeforeStored() {
  const chatId = await newGroup("dana", "Hurry", ["dirk"]);
  const dana = await signedIn("dana", desktop, `/#/${chatId}`);
  await dana.getByText("The beginning of the chat").waitFor();
  await breakStorage(dana);
  await field(dana).fill("in a hurry");
  await field(dana).press("Enter");
  await dana.reload();
  await dana.waitForFunction(() => document.querySelector("textarea")?.value === "in a hurry");
  await field(dana).press("Enter");
  await shows(dana, ["in a hurry"]);
  await allSent(dana);
  await dana.reload();
  await shows(dana, ["in a hurry"]);
  assert.equal(await field(dana).inputValue(), "");
  await dana.context().close();
}

/** The oldest drafts go when there are too many; one that is no draft breaks nothing. */
export async function manyDrafts() {
  const chatId = await newGroup("dina", "Notes", ["dirk"]);
  const dina = await signedIn("dina", desktop, `/#/${chatId}`);
  await field(dina).waitFor();
  await dina.evaluate(() => {
    for (let at = 1; at <= 120; at++) {
      const draft = { chatId: `chat_${at}`, title: "Old", text: "x".repeat(at === 1 ? 10 : 1000), at };
      localStorage.setItem(`parley/draft/dina/chat_${at}`, JSON.stringify(draft));
    }
    localStorage.setItem("parley/draft/dina/chat_odd", "{");
  });
  await field(dina).fill("the newest");
  await dina.waitForFunction(
    () => Object.keys(localStorage).filter((key) => key.startsWith("parley/draft/")).length === 100,
  );
  assert.equal(await dina.evaluate(() => localStorage.getItem("parley/draft/dina/chat_21")), null);
  await dina.reload();
  await dina.waitForFunction(() => document.querySelector("textarea")?.value === "the newest");
  await dina.context().close();
}

/** A person is removed from the chat that is open: the draft and the messages that are left stay, and are in the list. */
export async function removedWithText() {
  const chatId = await newGroup("rosa", "Choir", ["remo"]);
  await rest("rosa", "PATCH", "/profile", { displayName: "Rosa <R>" });
  const remo = await signedIn("remo", phone, `/#/${chatId}`);
  await remo.getByText("The beginning of the chat").waitFor();
  await field(remo).fill("half a thought");
  await rest("rosa", "DELETE", `/chats/${chatId}/members/remo`);
  await remo.getByText("Rosa <R> removed you from Choir.").waitFor();
  await remo.getByText("half a thought").waitFor();
  await accessible(remo, "removed-with-draft-phone");
  await remo.reload();
  await remo.getByText("Rosa <R> removed you from Choir.").waitFor();
  await remo.getByRole("button", { name: "Copy" }).click();
  await remo.getByText(/Copied|does not allow/).waitFor();
  await remo.getByRole("link", { name: "Back to the chats" }).click();
  await remo.getByRole("link", { name: "Choir: a text not sent" }).waitFor();
  await accessible(remo, "left-texts-phone");
  await remo.getByRole("link", { name: "Choir: a text not sent" }).click();
  await remo.getByRole("button", { name: "Delete" }).click();
  await remo.getByText("half a thought").waitFor({ state: "detached" });
  await remo.getByRole("link", { name: "Back to the chats" }).click();
  await remo.getByText("No chats yet.").waitFor();
  assert.equal(await remo.getByRole("link", { name: /Choir/ }).count(), 0);
  await remo.context().close();
}

/** Messages that wait for a network come back as refused if the person was removed meanwhile. */
export async function removedWithMessages() {
  const chatId = await newGroup("ruth", "Band", ["rene"]);
  const rene = await signedIn("rene", desktop, `/#/${chatId}`);
  await rene.getByText("The beginning of the chat").waitFor();
  await rene.context().setOffline(true);
  await say(rene, "on its way");
  await rest("ruth", "DELETE", `/chats/${chatId}/members/rene`);
  await rene.context().setOffline(false);
  await rene.getByText("You are not a member of this chat.").waitFor();
  await rene.getByText(/^(ruth removed you from|You are no longer a member of) Band\.$/).waitFor();
  await rene.getByText("on its way").waitFor();
  await rene.reload();
  await rene.getByText("on its way").waitFor();
  await accessible(rene, "removed-with-message");
  await rene.goto(`${origin}/#/`);
  await rene.getByRole("link", { name: "Band: a text not sent" }).waitFor();
  await rest("ruth", "POST", `/chats/${chatId}/members`, { userId: "rene" });
  await rene.getByRole("link", { name: /A message was not sent/ }).click();
  await failed(rene).getByRole("button", { name: "Send again" }).click();
  await allSent(rene);
  assert.deepEqual(await stored("ruth", chatId), ["on its way"]);
  await rene.context().close();
}
