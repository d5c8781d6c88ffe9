// Runs the programs as members of one chat against the real server, which is killed twice while all of them write, and
// then leaves them alone for a minute. Each must have shown every message once, in order, and kept its stream. At last
// the server's data are put back to the first kill: each program must start over and show what is stored now.
//
//   node drive.mjs SERVER PROGRAMS     PROGRAMS: a JSON file, name to command; {base}, {host}, {token} and {chat} are filled in
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Server, until } from "./server.mjs";

const [binary, list] = process.argv.slice(2);
const programs = Object.entries(JSON.parse(readFileSync(list, "utf8")));
const total = 200;
// The server is killed after a third of what each says, and after two.
const lines = Math.ceil(total / programs.length);
const kills = [Math.floor(lines / 3), Math.floor((2 * lines) / 3)];
const silence = 60_000;
const began = Date.now();

const server = new Server(binary);
const clients = [];
function run(name, command, values) {
  const [file, ...args] = command.map((part) => part.replace(/\{(\w+)\}/g, (_, key) => values[key]));
  const child = spawn(file, args, { stdio: ["pipe", "pipe", "pipe"] });
  const client = { name, child, shown: [], said: [], exit: undefined };
  createInterface({ input: child.stdout }).on("line", (line) => client.shown.push(line));
  createInterface({ input: child.stderr }).on("line", (line) => client.said.push(line));
  child.on("exit", (code, signal) => (client.exit = code ?? signal));
  clients.push(client);
}
const state = () => clients.map((c) => `${c.name}: ${c.shown.length} shown, exit ${c.exit}; ${c.said.slice(-3).join(" | ")}`).join("\n");
const ends = () => clients.map((c) => c.said.filter((line) => line.includes("stream ended")).length);

async function call(base, bearer, method, path, body) {
  const res = await fetch(base + path, { method, headers: { Authorization: `Bearer ${bearer}`, "Content-Type": "application/json" }, body: body && JSON.stringify(body) });
  const text = await res.text();
  assert.ok(res.ok, `${method} ${path}: ${res.status} ${text}`);
  return JSON.parse(text);
}

try {
  await server.start();
  const base = `http://${server.address}`;
  const tokens = Object.fromEntries(programs.map(([name]) => [name, server.token(name)]));
  for (const [name] of programs) await call(base, tokens[name], "GET", "/api/v1/chats"); // a user exists from the first call on
  const first = programs[0][0];
  const { overview } = await call(base, tokens[first], "POST", "/api/v1/chats", { type: "CHAT_TYPE_GROUP", name: "First hour", memberIds: programs.slice(1).map(([name]) => name) });
  const id = overview.chat.chatId;
  for (const [name, command] of programs) run(name, command, { base, host: server.address, token: tokens[name], chat: id });

  const say = (i) => clients.forEach((c) => c.child.stdin.write(`line ${i}\n`));
  const all = (n) => until(state, () => clients.every((c) => c.exit === undefined && c.shown.length >= n * clients.length));
  for (let i = 0; i < lines - 1; i++) {
    // Once with sends under way, once with nobody there to take them; each time every program has its stream, which
    // on a busy machine takes it longer than a few lines.
    if (kills.includes(i)) await all(i);
    if (i === kills[1]) await server.kill();
    say(i);
    if (i === kills[0]) await server.kill();
    await sleep(250);
    if (i === kills[0]) server.keep();
    if (kills.includes(i)) await server.start();
  }
  await all(lines - 1);
  await sleep(5000); // for streams that come back only now
  const before = ends();
  await sleep(silence);
  assert.deepEqual(ends(), before, `streams that ended in the silence:\n${state()}`);
  say(lines - 1);
  await all(lines);

  const read = async () => {
    const stored = [];
    for (let more = true; more; ) {
      const page = await call(base, tokens[first], "GET", `/api/v1/chats/${id}/messages?pageSize=100&afterSequence=${stored.length}`);
      stored.push(...page.messages);
      more = page.hasMore ?? false;
    }
    return stored;
  };
  const shows = (shown, stored, name) =>
    assert.deepEqual(shown, stored.map((m) => `${m.sequence} ${m.senderId} ${m.content}`), `${name} does not show what is stored`);
  const stored = await read();
  assert.equal(stored.length, lines * clients.length);
  assert.deepEqual(stored.map((m) => Number(m.sequence)), stored.map((_, i) => i + 1));
  for (const c of clients) {
    assert.deepEqual(c.said.filter((line) => !line.includes("stream ended")), [], c.name);
    shows(c.shown, stored, c.name);
    const own = stored.filter((m) => m.senderId === c.name).map((m) => m.content);
    assert.deepEqual(own, [...Array(lines).keys()].map((i) => `line ${i}`), `what ${c.name} said, in order`);
    assert.ok(ends()[clients.indexOf(c)] >= 2, `${c.name} has not noticed the kills`);
  }

  const shown = clients.map((c) => c.shown.length);
  await server.kill();
  server.putBack();
  await server.start();
  const older = (await read()).length;
  assert.ok(older > 0 && older < stored.length, `${older} messages after the restore`);
  const again = older + clients.length;
  say(lines);
  await until(state, () => clients.every((c, i) => c.exit === undefined && c.shown.length >= shown[i] + again));
  const restored = await read();
  assert.equal(restored.length, again);
  clients.forEach((c, i) => shows(c.shown.slice(shown[i]), restored, c.name));
  for (const c of clients) c.child.stdin.end();
  await until(state, () => clients.every((c) => c.exit !== undefined));
  for (const c of clients) assert.equal(c.exit, 0, state());

  const counts = clients.map((c, i) => `${c.name} ${ends()[i]}`).join(", ");
  console.log(`first hour: ok, ${stored.length} messages in ${clients.length} programs, each once and in order; ${again} after a restore; streams ended: ${counts}; ${((Date.now() - began) / 1000).toFixed(0)} s`);
} finally {
  for (const c of clients) c.child.kill("SIGKILL");
  server.end();
}
