// A browser as people have it: its tabs hide one another, and it can be asked for by a port. Playwright has all of its
// own tabs visible at all times, and those are never frozen.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";
import { browserArgs, browserPath, patience } from "./harness.mjs";

/** Has `use` work with such a browser: as Playwright's context, and by its port. */
export async function withPlainBrowser(use) {
  const data = mkdtempSync(join(tmpdir(), "parley-web-"));
  const args = [
    "--headless=new",
    "--remote-debugging-port=0",
    `--user-data-dir=${data}`,
    "--no-first-run",
    "--disable-background-networking",
    "--window-size=1100,720",
    ...browserArgs,
    "about:blank",
  ];
  const process = spawn(browserPath, args, { stdio: ["ignore", "ignore", "pipe"] });
  const gone = once(process, "exit");
  try {
    const port = await listens(process);
    const browser = await chromium.connectOverCDP(`http://127.0.0.1:${port}`, { noDefaults: true });
    const [context] = browser.contexts();
    context.setDefaultTimeout(patience);
    await use({ context, port });
    await browser.close();
  } finally {
    process.kill();
    await gone;
    await rm(data, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }); // its helpers still write
  }
}

async function listens(process) {
  let text = "";
  for await (const line of createInterface({ input: process.stderr })) {
    const [, port] = line.match(/DevTools listening on ws:\/\/[^:]+:(\d+)/) ?? [];
    if (port) return Number(port);
    text += `${line}\n`;
  }
  throw new Error(`the browser did not start: ${text}`);
}
