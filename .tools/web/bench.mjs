// Prints what a key and a send cost with few chats and with many.
//
//   node bench.mjs SERVER CHROMIUM NODE_MODULES CHATS
import { setUp, tearDown } from "./harness.mjs";
import { cost } from "./manychats.mjs";

const [binary, browserPath, modules, many] = process.argv.slice(2);
try {
  await setUp(binary, browserPath, modules);
  for (const count of [10, Number(many)]) {
    const { key, send } = await cost(`lena${count}`, count);
    console.log(`${count} chats: ${key} ms of the page's thread for a key, ${send} ms for a send`);
  }
} finally {
  await tearDown();
}
