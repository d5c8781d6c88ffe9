// Does what the README and its page on REST say, literally: their lines for a shell, against a server that has just
// been started, with its real address in place of the default. No answer may be an error, and Bob's stream must show
// what Alice says.
//
//   node readme.mjs SERVER DOCUMENT...
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Server, until } from "./server.mjs";

const [binary, ...documents] = process.argv.slice(2);
const sections = ["Two people chat", "REST"];
const server = new Server(binary);
const streams = [];
try {
  await server.start();
  const printed = (pattern) => server.lines.map((line) => line.match(pattern)?.[1]).find(Boolean);
  await until(() => server.lines.join("\n"), () => printed(/^\s*(BOB=\S+)/));
  const users = [printed(/^\s*(ALICE=\S+)/), printed(/^\s*(BOB=\S+)/)];
  const here = (text) => text.replaceAll("127.0.0.1:8080", server.address).replaceAll("127.0.0.1:9092", printed(/Kafka at (\S+)/)).replaceAll(".parley/", `${server.data}/`);

  const text = documents.map((name) => readFileSync(name, "utf8")).join("\n");
  let vars = users.join("\n");
  let shown = 0;
  for (const name of sections) {
    const section = text.split(`\n## ${name}\n`)[1]?.split("\n## ")[0];
    assert.ok(section, `the README has no section ${name}`);
    for (const [, block] of section.matchAll(/```sh\n(.*?)```/gs)) {
      const script = `set -euo pipefail\ncurl() { command curl --fail-with-body "$@"; }\n${vars}\n${here(block)}`;
      if (/curl -\w*N/.test(block)) {
        // "In a terminal of its own."
        const child = spawn("bash", ["-c", script], { stdio: ["ignore", "pipe", "inherit"], detached: true });
        const stream = { name, child, seen: "" };
        child.stdout.on("data", (b) => (stream.seen += b));
        streams.push(stream);
        await until(() => `a stream says hello, it says: ${stream.seen}`, () => /hello/i.test(stream.seen), 10);
        continue;
      }
      // The next block is written in the same shell.
      const names = [...block.matchAll(/(?:^|\s)([A-Z]+)=/gm)].map((m) => m[1]).filter((n) => n !== "BOB" && n !== "ALICE");
      const write = () => spawnSync("bash", ["-c", `${script}\n{ declare -p ${names.join(" ")}; } >&3`], { stdio: ["ignore", "pipe", "pipe", "pipe"], encoding: "utf8", timeout: 60_000 });
      let told = write();
      // Kafka is a moment behind the commit, which no person notices.
      for (let tries = 0; /^kcat /m.test(block) && told.status === 0 && told.stdout === "" && tries < 20; tries++) {
        await sleep(250);
        told = write();
      }
      const what = `${block}\n${told.stdout}${told.stderr}`;
      assert.equal(told.status, 0, what);
      assert.notEqual(told.stdout.trim(), "", what);
      if (names.length > 0) vars += `\n${told.output[3]}`;
      shown++;
    }
  }
  assert.ok(streams.length > 0 && shown >= 4, `${streams.length} streams, ${shown} other blocks in the README`);
  for (const s of streams.filter((s) => s.name === sections[0])) await until(() => s.seen, () => s.seen.includes("Hello, Bob"), 10);
  console.log(`readme: ok, ${shown} blocks and ${streams.length} streams`);
} finally {
  for (const { child } of streams) process.kill(-child.pid, "SIGKILL");
  server.end();
}
