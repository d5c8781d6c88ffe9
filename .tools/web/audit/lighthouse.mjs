// What Lighthouse says of the page: as a desktop and as a phone has it, signed in and not.
import assert from "node:assert/strict";
import lighthouse, { desktopConfig } from "lighthouse";
import { newGroup, origin, post, tokenOf } from "../harness.mjs";
import { withPlainBrowser } from "../plain.mjs";

const categories = ["performance", "accessibility", "best-practices"];
// Of 100.
const least = {
  desktop: { performance: 95, accessibility: 95, "best-practices": 95 },
  phone: { performance: 90, accessibility: 95, "best-practices": 95 },
};
const most = 3; // runs: a machine that does something else makes one of them slow
// Speed of a phone as Lighthouse's benchmark counts it. Lighthouse simulates a phone by a machine four times slower than
// this one. One that is busy is slower by itself, so that what else it does would count four times.
const phoneIndex = 375;

/** The lowest scores of all pages, by device and category. */
export async function audit() {
  const chatId = await newGroup("lucy", "Light", ["luke"]);
  for (let n = 0; n < 40; n++) await post(n % 3 ? "luke" : "lucy", chatId, `${n}: https://example.com/${n}`);
  const session = JSON.stringify({ way: "token", userId: "lucy", secret: tokenOf("lucy") });
  const lowest = { desktop: {}, phone: {} };
  await withPlainBrowser(async ({ context, port }) => {
    const [tab] = context.pages();
    await tab.goto(`${origin}/app/icon.svg`); // of the same origin, to sign in
    for (const [page, path, signedIn] of [
      ["sign-in", "/", false],
      ["chat", `/#/${chatId}`, true],
    ]) {
      await tab.evaluate((text) => localStorage.setItem("parley/session", text), signedIn ? session : "");
      for (const [device, config] of [
        ["desktop", desktopConfig],
        ["phone", undefined],
      ]) {
        const report = await best(origin + path, port, config);
        const calls = report.audits["network-requests"].details.items.map((item) => item.url.split("/").at(-1));
        assert.equal(calls.includes("Subscribe"), signedIn);
        for (const category of categories) {
          const score = scoreOf(report, category);
          lowest[device][category] = Math.min(lowest[device][category] ?? 100, score);
          const speed = report.environment.benchmarkIndex;
          const what = `${page} on a ${device} (${speed}): ${category} ${score}: ${complaints(report, category)}`;
          assert.ok(score >= least[device][category], what);
        }
      }
    }
  });
  return lowest;
}

const scoreOf = (report, category) => Math.round(report.categories[category].score * 100);

/** The best report of as few runs as need be: what is wrong with the page is wrong in all of them. */
async function best(url, port, config) {
  const of = (report) => Math.min(...categories.map((category) => scoreOf(report, category)));
  const flags = {
    port,
    onlyCategories: categories,
    disableStorageReset: true,
    maxWaitForLoad: 8000, // the stream of a chat never ends
    logLevel: "error",
  };
  let best;
  for (let n = 0; n < most && !(best && of(best) >= 95); n++) {
    const { lhr } = await lighthouse(url, flags, config);
    assert.equal(lhr.runtimeError, undefined);
    flags.throttling = slowed(lhr);
    if (!best || of(lhr) > of(best)) best = lhr;
  }
  return best;
}

/** The throttling for the next run, for a machine as fast as it was in this one. */
function slowed({ configSettings: { throttling }, environment: { benchmarkIndex } }) {
  if (throttling.cpuSlowdownMultiplier === 1) return throttling; // a desktop
  return { ...throttling, cpuSlowdownMultiplier: Math.min(4, Math.max(1, benchmarkIndex / phoneIndex)) };
}

/** What was not perfect, worst first. */
function complaints(lhr, category) {
  return lhr.categories[category].auditRefs
    .map(({ id }) => lhr.audits[id])
    .filter(({ score }) => score !== null && score < 1)
    .sort((a, b) => a.score - b.score)
    .map(({ id, score, displayValue }) => `${id} ${score} ${displayValue ?? ""}`.trim())
    .join("; ");
}
