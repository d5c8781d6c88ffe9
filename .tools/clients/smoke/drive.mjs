// Runs one use of each REST client against the real server.
//
//   node drive.mjs SERVER PROGRAMS     PROGRAMS: a JSON file, name to command; {base}, {token} and {other} are filled in
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { Server } from "../../firsthour/server.mjs";

const [binary, list] = process.argv.slice(2);
const server = new Server(binary);
try {
  await server.start();
  const values = { base: `http://${server.address}`, token: server.token("alice"), other: "bob" };
  // A user exists from the first call on.
  const seen = await fetch(`${values.base}/api/v1/chats`, { headers: { Authorization: `Bearer ${server.token("bob")}` } });
  if (!seen.ok) throw new Error(`bob: ${seen.status}`);
  for (const [name, command] of Object.entries(JSON.parse(readFileSync(list, "utf8")))) {
    const [file, ...args] = command.map((part) => part.replace(/\{(\w+)\}/g, (_, key) => values[key]));
    const { status, stdout, stderr } = spawnSync(file, args, { encoding: "utf8", timeout: 60_000 });
    if (status !== 0) throw new Error(`the ${name} client failed:\n${stdout}${stderr}`);
  }
} finally {
  server.end();
}
