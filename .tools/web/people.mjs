// What people allow each other: blocks, invitations, settings; their data, and the end of an account.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { withCode } from "./codes.mjs";
import {
  accessible,
  allSent,
  desktop,
  live,
  newGroup,
  operator,
  origin,
  phone,
  rest,
  say,
  signedIn,
  stored,
  visit,
} from "./harness.mjs";

const button = (tab, name) => tab.getByRole("button", { name, exact: true });
const account = (tab) => button(tab, "Your account").click();
const withProfile = (user, fields) => rest(user, "PATCH", "/profile", fields);

async function directWith(tab, person) {
  await button(tab, "New chat").click();
  await tab.getByLabel("Person", { exact: true }).fill(person);
  await button(tab, "Begin").click();
}

/** A person is found by an id that looks like an address or a handle, and by an address only if that is allowed. */
export async function idsWithAt() {
  await withProfile("eve@corp.example", { displayName: "Eve" });
  await withProfile("@odd", { displayName: "Odd" });
  const tab = await signedIn("finn");
  await live(tab);
  for (const [id, name] of [["eve@corp.example", "Eve"], ["@odd", "Odd"]]) {
    await directWith(tab, id);
    await tab.locator(".chat > header").getByRole("heading", { name }).waitFor();
  }
  const hidden = await visit(desktop);
  await withCode(hidden, "hidden@example.com");
  await button(hidden, "Skip").click();
  await directWith(tab, "hidden@example.com");
  await tab.getByText("Nobody is known as “hidden@example.com”").waitFor();
  await account(hidden);
  await hidden.getByLabel("People who know your e-mail address").check();
  await hidden.getByText("Saved", { exact: true }).waitFor();
  await button(tab, "Begin").click();
  const id = await hidden.evaluate(() => JSON.parse(localStorage.getItem("parley/session")).userId);
  await tab.locator(".chat > header").getByRole("heading", { name: id }).waitFor();
  for (const t of [tab, hidden]) await t.context().close();
}

/** A person is blocked from a chat of two or from a group, and unblocked there or in the account. */
export async function blocks() {
  await withProfile("gerd", { displayName: "Gerd", about: "Likes <b>tea</b>.\nשלום" });
  const group = await newGroup("hanna", "Garden", ["gerd"]);
  const hanna = await signedIn("hanna", desktop, `/#/${group}`);
  await button(hanna, "About Garden").click();
  await button(hanna, "Gerd").click();
  const person = hanna.getByRole("dialog", { name: "Gerd" });
  await person.getByText("Likes <b>tea</b>.").waitFor();
  await accessible(hanna, "person");
  await person.getByRole("button", { name: "Write to this person" }).click();
  await hanna.locator(".chat > header").getByRole("heading", { name: "Gerd" }).waitFor();
  const chatId = await hanna.evaluate(() => location.hash.slice(2));
  await say(hanna, "before");
  await allSent(hanna);

  await button(hanna, "About Gerd").click();
  await button(hanna, "Block").click();
  await button(hanna, "Unblock").waitFor();
  await accessible(hanna, "blocked");
  await hanna.keyboard.press("Escape");
  await say(hanna, "after");
  await hanna.getByText("You may not write here.").waitFor();
  const { blockedUsers } = await rest("hanna", "GET", "/blocks");
  assert.deepEqual(blockedUsers.map((b) => b.userId), ["gerd"]);
  await account(hanna);
  await accessible(hanna, "account-blocked");
  await button(hanna, "Unblock Gerd").click();
  await hanna.getByText("You have blocked nobody.").waitFor();
  await hanna.keyboard.press("Escape");
  await button(hanna, "Send again").click();
  await allSent(hanna);
  assert.deepEqual(await stored("gerd", chatId), ["before", "after"]);
  await hanna.context().close();
}

/** Somebody who wants to be asked is invited, from a group and with a new one, and accepts or declines. */
export async function invitations() {
  const group = await newGroup("ines", "Reading", ["jule"]);
  for (const id of ["karl", "kuno"]) {
    await rest(id, "GET", "/chats");
    await rest(id, "PATCH", "/settings", { whoMayAdd: "WHO_MAY_ADD_NOBODY" });
  }
  const ines = await signedIn("ines", desktop, `/#/${group}`);
  await button(ines, "About Reading").click();
  await ines.getByLabel("Add a member").fill("karl");
  await button(ines, "Add").click();
  await ines.getByText("This person joins groups by invitation only.").waitFor();
  await accessible(ines, "invite");
  await button(ines, "Invite karl").click();
  await ines.getByText("karl is invited, and becomes a member by accepting.").waitFor();
  await ines.keyboard.press("Escape");
  await button(ines, "New chat").click();
  await ines.getByLabel("Group", { exact: true }).check();
  await ines.getByLabel("Name of the group").fill("Writing");
  await ines.getByLabel("People, with commas").fill("jule, karl, kuno");
  await button(ines, "Begin").click();
  await ines.getByText("To be invited instead of added: karl").waitFor();
  await button(ines, "Begin, and invite").click();
  await ines.getByText("To be invited instead of added: karl kuno").waitFor();
  await accessible(ines, "new-chat-invited");
  await button(ines, "Begin, and invite").click();
  await ines.locator(".chat > header").getByRole("heading", { name: "Writing" }).waitFor();

  const karl = await signedIn("karl", phone);
  await karl.getByRole("button", { name: "Invitations 2" }).click();
  await accessible(karl, "invitations-phone");
  await button(karl, "Decline the invitation to Writing").click();
  await button(karl, "Join Writing").waitFor({ state: "detached" });
  await button(karl, "Join Reading").click();
  await karl.locator(".chat > header").getByRole("heading", { name: "Reading" }).waitFor();
  assert.equal(await karl.getByRole("button", { name: /^Invitations/ }).count(), 0);
  assert.equal((await rest("karl", "GET", "/invitations")).invitations.length, 0);
  for (const tab of [ines, karl]) await tab.context().close();
}

/** What others may do is what the server says and holds. */
export async function settings() {
  const lotta = await signedIn("lotta", phone);
  await live(lotta);
  await account(lotta);
  await lotta.getByLabel("Everybody", { exact: true }).waitFor();
  assert.ok(await lotta.getByLabel("Everybody", { exact: true }).isChecked());
  await lotta.getByLabel("Nobody: everybody invites you").check();
  await lotta.getByText("Saved", { exact: true }).waitFor();
  await lotta.getByLabel("People who know your e-mail address").check();
  await accessible(lotta, "settings-phone");
  await lotta.reload();
  await account(lotta);
  await lotta.getByLabel("Nobody: everybody invites you").waitFor();
  assert.ok(await lotta.getByLabel("Nobody: everybody invites you").isChecked());
  assert.ok(await lotta.getByLabel("People who know your e-mail address").isChecked());
  const { settings: held } = await rest("lotta", "GET", "/settings");
  assert.deepEqual([held.whoMayAdd, held.findableByIdentifier], ["WHO_MAY_ADD_NOBODY", true]);
  await lotta.context().close();
}

/** All that the server has about a person is in a file. */
export async function exportsData() {
  await withProfile("minna", { displayName: "Mona", about: "ä\n\"x\"" });
  const chatId = await newGroup("minna", "Export", ["mika"]);
  const minna = await signedIn("minna", desktop, `/#/${chatId}`);
  for (let n = 0; n < 3; n++) await say(minna, `message ${n}`);
  await allSent(minna);
  await account(minna);
  const [download] = await Promise.all([minna.waitForEvent("download"), button(minna, "Download your data").click()]);
  assert.equal(download.suggestedFilename(), "parley-minna.json");
  const records = JSON.parse(readFileSync(await download.path(), "utf8"));
  assert.equal(records.find((r) => r.profile).profile.about, "ä\n\"x\"");
  const sent = records.filter((r) => r.message).map((r) => r.message.content);
  assert.deepEqual(sent.sort(), ["message 0", "message 1", "message 2"]);
  assert.ok(records.some((r) => r.chat?.name === "Export"));
  await minna.context().close();
}

/** An account is deleted once its id is typed; nothing of it stays in the browser. */
export async function deletesAccount() {
  const chatId = await newGroup("olof", "Farewell", ["nele"]);
  const nele = await signedIn("nele", desktop, `/#/${chatId}`);
  await nele.getByLabel("Message", { exact: true }).fill("never sent");
  await account(nele);
  await button(nele, "Delete the account…").click();
  const confirm = button(nele, "Delete the account");
  await nele.getByLabel("To confirm, type your id").fill("nel");
  assert.ok(await confirm.isDisabled());
  await accessible(nele, "delete-account");
  await nele.getByLabel("To confirm, type your id").fill("nele");
  await nele.route("**/DeleteAccount", (route) => route.abort());
  await confirm.click();
  await nele.getByRole("dialog", { name: "Delete the account?" }).locator(".error:not(:empty)").waitFor();
  await nele.unroute("**/DeleteAccount");
  await confirm.click();
  await nele.getByText("Your account is deleted.").waitFor();
  const drafts = () => Object.keys(localStorage).filter((key) => key.startsWith("parley/draft/"));
  assert.deepEqual(await nele.evaluate(drafts), []);
  assert.equal((await rest("olof", "GET", "/users/nele/profile")).profile.deleted, true);
  await nele.context().close();
}

/** A person whose account is suspended is told so at the next sign-in. */
export async function suspended() {
  const tab = await visit(phone);
  await withCode(tab, "sven@example.com");
  await button(tab, "Skip").click();
  const id = await tab.evaluate(() => JSON.parse(localStorage.getItem("parley/session")).userId);
  operator("users", "suspend", id, "--reason", "case 17", "--execute");
  await tab.getByText("Your session was ended").waitFor();
  await withCode(tab, "sven@example.com", "", { refused: true });
  await tab.getByRole("heading", { name: "Your account cannot be used." }).waitFor();
  await accessible(tab, "suspended-phone");
  await button(tab, "Sign in with another account").click();
  await tab.getByLabel("E-mail address").waitFor();
  await tab.context().close();
}

/** Each reason that a call of the page may be refused for has words of the page, or the server's with a time to wait. */
export async function wordsForReasons() {
  const page = await (await fetch(`${origin}/docs/errors`)).text();
  const script = await (await fetch(`${origin}/app/app.js`)).text();
  const theServers = new Set(["INVALID_ARGUMENT", "RATE_LIMITED", "UNAVAILABLE"]); // its text says more
  let seen = 0;
  for (const heading of ["Every call, and chats", "Signing in", "People"]) {
    const part = page.split("<h2").find((p) => p.includes(`${heading}</h2>`));
    for (const [, reason] of part.matchAll(/<td><code>([A-Z_]+)<\/code>/g)) {
      seen++;
      assert.ok(theServers.has(reason) || script.includes(`${reason}:`), `${reason} has no words`);
    }
  }
  assert.ok(seen > 60, `${seen} reasons`);
}
