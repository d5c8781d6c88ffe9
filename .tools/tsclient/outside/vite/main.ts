// A chat in a page: #base=…&token=…&user=…, and other=… to write to somebody.
import { Client } from "@parley/client";

const at = new URLSearchParams(location.hash.slice(1));
const client = new Client({ baseUrl: at.get("base")!, token: at.get("token")!, userId: at.get("user")! }).start();
const chatId = await client.createDirect(at.get("other")!);
const [input, list] = [document.querySelector("input")!, document.querySelector("ol")!];
document.querySelector("form")!.onsubmit = () => {
  client.send(chatId, input.value);
  return false;
};
client.subscribe(() => {
  const lines = client.chat(chatId)?.messages.map((m) => Object.assign(document.createElement("li"), { textContent: m.content }));
  list.replaceChildren(...(lines ?? []));
});
