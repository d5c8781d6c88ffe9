// Drives the web client in a real browser against a real server, which is killed on the way.
//
//   node drive.mjs SERVER CHROMIUM NODE_MODULES [SHOTS]
import assert from "node:assert/strict";
import { audit } from "./audit/lighthouse.mjs";
import { away, group, keys, minuteOffline, refused, storageFails, twoPeople } from "./chats.mjs";
import { codes } from "./codes.mjs";
import { browser, problems, setUp, shots, tearDown } from "./harness.mjs";
import { history, leftWhileScrolling } from "./history.mjs";
import {
  draftAfterReload,
  draftOfAnotherTab,
  leftBeforeStored,
  manyDrafts,
  refusedAfterReload,
  removedWithMessages,
  removedWithText,
} from "./kept.mjs";
import { manyChats } from "./manychats.mjs";
import {
  blocks,
  deletesAccount,
  exportsData,
  idsWithAt,
  invitations,
  settings,
  suspended,
  wordsForReasons,
} from "./people.mjs";
import { pictures } from "./pictures.mjs";
import { newLine, nothingFlickers, rowsOfPeople, skeletonAndDrop, textsOfPeople } from "./shown.mjs";
import { firstMessage } from "./speed.mjs";
import { aloneFrozen, idle, leaderClosed, leaderFrozen, sevenTabs } from "./tabs.mjs";
import { pasted, pastedEnds, sessionRenews } from "./tokens.mjs";

let scenarios = 0;

/** Runs a scenario; a failure names it. */
async function run(scenario, ...given) {
  const began = Date.now();
  try {
    const result = await scenario(...given);
    if (process.env.TIMES) console.error(`web: ${scenario.name}, ${seconds(began)} s`);
    scenarios++;
    return result;
  } catch (error) {
    throw new Error(`${scenario.name}, after ${seconds(began)} s: ${error.message}`, { cause: error });
  }
}

const seconds = (began) => ((Date.now() - began) / 1000).toFixed(1);

async function oneByOne(people) {
  for (const scenario of [group, away, keys]) await run(scenario, people);
  const tabs = [refused, storageFails, pasted, sevenTabs, leaderClosed, leaderFrozen, aloneFrozen];
  const kept = [refusedAfterReload, draftAfterReload, draftOfAnotherTab, leftBeforeStored, manyDrafts, removedWithText, removedWithMessages];
  const social = [idsWithAt, blocks, invitations, settings, exportsData, deletesAccount, wordsForReasons];
  const long = [history, leftWhileScrolling, manyChats];
  const looks = [textsOfPeople, rowsOfPeople, newLine, nothingFlickers, skeletonAndDrop];
  for (const scenario of [...tabs, ...kept, ...social, ...long, ...looks]) await run(scenario);
}

async function all() {
  const people = await run(twoPeople); // alone: the server dies
  const patient = [idle, minuteOffline, codes, suspended, sessionRenews, pastedEnds]; // which do little but wait
  const busy = oneByOne(people).then(() => run(audit)); // Lighthouse has a browser of its own
  const [scores] = await Promise.all([busy, ...patient.map((scenario) => run(scenario))]);
  const first = await run(firstMessage); // alone: it is measured
  if (shots) await run(pictures);
  assert.deepEqual(problems, []);
  const lighthouse = Object.entries(scores).map(([device, of]) => `${device} ${Object.values(of).join("/")}`);
  return { first, lighthouse };
}

const began = Date.now();
const [binary, browserPath, modules, folder] = process.argv.slice(2);
try {
  await setUp(binary, browserPath, modules, folder);
  const { first, lighthouse } = await all();
  console.log(
    `web: ok, ${scenarios} scenarios, first message after ${first} ms, ` +
      `Lighthouse (performance/accessibility/best practices) ${lighthouse.join(", ")}, ` +
      `Chromium ${browser.version()}, ${seconds(began)} s`,
  );
} catch (error) {
  console.error(`web: FAILED in ${error.message}`, ...problems.map((p) => `\nproblem: ${p}`), "\n", error.cause ?? "");
  process.exitCode = 1;
} finally {
  await tearDown();
}
