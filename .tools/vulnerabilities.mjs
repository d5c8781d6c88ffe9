// Reads what govulncheck -format json prints, and prints a line for each vulnerability: its module, its id, and the first
// version without it. "package" takes those in packages that are imported, "symbol" those in functions that are called.
import { readFileSync } from "node:fs";

const called = process.argv[2] === "symbol";
const found = readFileSync(0, "utf8").split(/^}$/m).filter((text) => text.trim()).map((text) => JSON.parse(`${text}}`).finding)
  .filter((f) => f && (called ? f.trace[0].function : f.trace[0].package));
const lines = found.map((f) => `${f.trace[0].module} ${f.osv} ${f.fixed_version ?? "never"}`);
process.stdout.write([...new Set(lines)].sort().map((line) => `${line}\n`).join(""));
