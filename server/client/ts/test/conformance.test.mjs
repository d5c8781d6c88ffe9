// The machine passes the scenarios of server/client/conformance.
import assert from "node:assert/strict";
import { test } from "node:test";
import { play } from "./play.mjs";
import { readSet } from "./set.mjs";

test("scenarios", async (t) => {
  const device = await import(new URL("../dist/device/index.js", import.meta.url));
  const set = readSet();
  assert.ok(set.length >= 300, `${set.length} scenarios, fewer than 300`);
  const failures = [];
  for (const scenario of set) {
    try {
      play(device, scenario);
    } catch (e) {
      failures.push(e.message);
    }
  }
  assert.equal(failures.length, 0, `${failures.length} of ${set.length} scenarios fail:\n${failures.slice(0, 10).join("\n")}`);
  t.diagnostic(`${set.length} scenarios`);
});
