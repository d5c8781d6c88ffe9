// Reads the set of scenarios: PARLEY_SCENARIOS is the folder of server/client/conformance/testdata.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { gunzipSync } from "node:zlib";

export function readSet() {
  const folder = process.env.PARLEY_SCENARIOS;
  const scripted = readFileSync(join(folder, "scripted.jsonl"), "utf8");
  const explored = gunzipSync(readFileSync(join(folder, "explored.jsonl.gz"))).toString();
  return (scripted + explored)
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
}
