// Pictures that show no test's leftovers: what the README shows.
import { allSent, desktop, live, newGroup, phone, post, rest, say, shot, signedIn } from "./harness.mjs";

export async function pictures() {
  for (const [options, name] of [
    [{ ...desktop, viewport: { width: 960, height: 600 } }, "readme"],
    [phone, "readme-phone"],
  ]) {
    const [ann, ben, cleo] = ["ann", "ben", "cleo"].map((user) => (name === "readme" ? user : `${user}2`));
    const begin = async (chatId, ...said) => {
      for (const [user, content] of said) await post(user, chatId, content);
    };
    await begin(await newGroup(ann, "Summer", [ben, cleo]), [cleo, "The hut is ours from the 3rd on."]);
    const { overview } = await rest(ann, "POST", "/chats", { type: "CHAT_TYPE_DIRECT", memberIds: [ben] });
    await begin(overview.chat.chatId, [ann, "Do you have my umbrella?"], [ben, "Found it!"]);
    const tab = await signedIn(ann, options);
    await live(tab);
    const tea = await newGroup(ann, "Tea at four", [ben, cleo]);
    await begin(
      tea,
      [ann, "Tea at four?"],
      [ben, "Gladly. Shall I bring something?"],
      [cleo, "I baked. Recipe: https://example.com/lemon-cake"],
      [ben, "Then I bring nothing but hunger."],
    );
    await tab.getByRole("link", { name: /Tea at four/ }).click();
    await say(tab, "Perfect, see you at my place.");
    await allSent(tab);
    await shot(tab, name);
    await tab.context().close();
  }
}
