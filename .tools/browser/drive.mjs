// Drives the page in a real browser against a real server, which is killed and started again on the way.
//
//   node drive.mjs SERVER-BINARY CHROMIUM BUNDLE
//
// Beside that, an EventSource in the page, with a ticket for each stream, resumes each time, and a second page keeps two idle streams of another
// server for longer than any timer on the way: one of Connect, one of server-sent events read by fetch.
import assert from "node:assert/strict";
import { spawn, execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [binary, browserPath, bundlePath] = process.argv.slice(2);
const work = mkdtempSync(join(tmpdir(), "parley-browser-"));
const data = join(work, "data");
const patience = 30_000;
const began = Date.now();

let server;
let calm; // a server that nobody kills
async function launch(listen, dir) {
  const child = spawn(binary, ["--listen", listen, "--kafka-listen", "127.0.0.1:0", "--data-dir", dir], { stdio: ["ignore", "pipe", "pipe"] });
  let log = "";
  child.stderr.on("data", (b) => (log = (log + b).slice(-4000)));
  for await (const line of createInterface({ input: child.stdout })) {
    const found = line.match(/listening on http:\/\/([^,\s]+),/);
    if (found) {
      child.stdout.resume();
      return { child, address: found[1] };
    }
  }
  throw new Error(`the server did not start: ${log}`);
}
async function start(listen) {
  const started = await launch(listen, data);
  server = started.child;
  return started.address;
}
async function kill() {
  const gone = once(server, "exit");
  server.kill("SIGKILL");
  await gone;
}
const tokenOf = (user, dir = data) => execFileSync(binary, ["--data-dir", dir, "token", user], { encoding: "utf8" }).trim();

// The page comes from an origin of its own, so every call of the API crosses origins.
function page(base) {
  const html = `<!doctype html><meta charset="utf-8"><title>Parley</title><body data-server="${base}">
<form id="sign-in"><input id="token" aria-label="token"><button>Sign in</button></form><p id="state">out</p>
<button id="create">Create chat</button><p id="chat"></p>
<form id="send"><input id="content" aria-label="content"><button>Send</button></form><p id="unsent">0</p>
<ol id="log"></ol><script src="/page.js"></script>`;
  const script = readFileSync(bundlePath);
  return createServer((req, res) => {
    res.setHeader("Content-Security-Policy", `default-src 'none'; script-src 'self'; connect-src 'self' ${base}`);
    if (req.url === "/page.js") res.setHeader("Content-Type", "text/javascript").end(script);
    else if (req.url === "/") res.setHeader("Content-Type", "text/html; charset=utf-8").end(html);
    else res.writeHead(404).end();
  });
}

// Heartbeats come every 15 s: one when the stream is up to date, and four in this time.
const idle = 65_000;

// A page that only listens, and in the same page a reader of server-sent events on fetch, which can send the token.
async function holdIdle(browser, base, dir) {
  const site = page(base);
  site.listen(0, "127.0.0.1");
  await once(site, "listening");
  const tab = await browser.newPage();
  tab.setDefaultTimeout(patience);
  await tab.goto(`http://localhost:${site.address().port}/`);
  const bearer = tokenOf("alice", dir);
  await tab.fill("#token", bearer);
  await tab.click("#sign-in button");
  await tab.waitForFunction(() => document.getElementById("state").textContent === "live");
  const events = tab.evaluate(
    async ([url, bearer, ms]) => {
      const stop = new AbortController();
      setTimeout(() => stop.abort(), ms);
      const res = await fetch(url, { headers: { Authorization: `Bearer ${bearer}`, "Last-Event-ID": "" }, signal: stop.signal });
      let text = "";
      try {
        for (const reader = res.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
          const { done, value } = await reader.read();
          if (done) return "the stream ended";
          text += value;
        }
      } catch (e) {
        return { ended: e.name, heartbeats: text.match(/"heartbeat":/g).length, hellos: text.match(/"hello":/g).length };
      }
    },
    [`${base}/api/v1/stream`, bearer, idle],
  );
  const seen = await events;
  const { streams, heartbeats } = await tab.evaluate(() => ({ ...document.body.dataset }));
  await tab.close();
  site.close();
  return { streams, heartbeats, seen };
}

const problems = [];
let browser;
let pages;
let holding;
try {
  const address = await start("127.0.0.1:0");
  const base = `http://${address}`;
  const alice = tokenOf("alice");
  const bob = tokenOf("bob");
  pages = page(base);
  pages.listen(0, "127.0.0.1");
  await once(pages, "listening");
  const port = pages.address().port;

  browser = await chromium.launch({
    executablePath: browserPath,
    args: [...(process.getuid?.() === 0 ? ["--no-sandbox"] : []), "--disable-dev-shm-usage", "--host-resolver-rules=MAP parley.test 127.0.0.1"],
  });
  const calmData = join(work, "calm");
  const started = await launch("127.0.0.1:0", calmData);
  calm = started.child;
  holding = holdIdle(browser, `http://${started.address}`, calmData);
  holding.catch(() => {}); // awaited below

  const tab = await browser.newPage();
  tab.setDefaultTimeout(patience);
  tab.on("pageerror", (e) => problems.push(e.message));
  const text = (id) => tab.locator(`#${id}`).textContent();
  const until = (id, value) => tab.waitForFunction(([i, v]) => document.getElementById(i).textContent === v, [id, value]);
  const lines = async (n) => {
    await tab.waitForFunction((n) => document.querySelectorAll("#log li").length >= n, n);
    return tab.locator("#log li").allTextContents();
  };
  const say = async (content) => {
    await tab.fill("#content", content);
    await tab.click("#send button");
  };
  const bobSays = async (content) => {
    const res = await fetch(`${base}/api/v1/chats/${await text("chat")}/messages`, {
      method: "POST",
      headers: { Authorization: `Bearer ${bob}`, "Content-Type": "application/json" },
      body: JSON.stringify({ content }),
    });
    assert.equal(res.status, 201);
  };

  await tab.goto(`http://localhost:${port}/`);
  await tab.evaluate(
    ([api, bearer]) =>
      new Promise((listening) => {
        window.heard = [];
        window.tickets = 0;
        let last = "";
        const listen = async () => {
          try {
            const made = await fetch(`${api}/auth/stream-tickets`, { method: "POST", headers: { Authorization: `Bearer ${bearer}` } });
            const { ticket } = await made.json();
            window.tickets++;
            const source = new EventSource(`${api}/stream?ticket=${ticket}&lastEventId=${encodeURIComponent(last)}`);
            source.onmessage = (e) => {
              last = e.lastEventId;
              const frame = JSON.parse(e.data);
              if (frame.message) window.heard.push(frame.message.content);
              if (frame.heartbeat) listening();
            };
            // It comes again by itself, and is refused, because the ticket was used.
            source.onerror = () => source.readyState === EventSource.CLOSED && listen();
          } catch {
            setTimeout(listen, 200); // the server is away
          }
        };
        void listen();
      }),
    [`${base}/api/v1`, bob],
  );
  await tab.fill("#token", "not a token");
  await tab.click("#sign-in button");
  await tab.waitForFunction(() => document.getElementById("state").textContent.includes("token is not valid"));
  await tab.fill("#token", alice);
  await tab.click("#sign-in button");
  await until("state", "live");
  await tab.click("#create");
  await tab.waitForFunction(() => document.getElementById("chat").textContent.startsWith("chat_"));
  await say("one");
  await lines(1);
  await bobSays("two");
  assert.deepEqual(await lines(2), ["1 alice: one", "2 bob: two"]);

  // A message is written while nothing is there to take it.
  await kill();
  await until("state", "away");
  await say("three");
  await until("unsent", "1");
  assert.equal(await start(address), address);
  await until("state", "live");
  await until("unsent", "0");
  await lines(3);
  await bobSays("four");
  assert.deepEqual(await lines(4), ["1 alice: one", "2 bob: two", "3 alice: three", "4 bob: four"]);

  // What was committed while the page was cut off comes with the next stream. Killed again, because a page that is
  // offline in the tools' sense keeps streams that are open.
  await kill();
  await until("state", "away");
  await tab.context().setOffline(true);
  await start(address);
  await bobSays("five");
  await bobSays("six");
  await tab.context().setOffline(false);
  assert.deepEqual((await lines(6)).slice(4), ["5 bob: five", "6 bob: six"]);
  await until("state", "live");

  // REST from another origin: all methods pass the preflight, and the headers that matter can be read.
  const rest = (method, path, body) =>
    tab.evaluate(
      async ([url, method, bearer, body]) => {
        const headers = { Authorization: `Bearer ${bearer}`, "Idempotency-Key": "k" };
        if (body) headers["Content-Type"] = "application/json";
        const res = await fetch(url, { method, headers, body });
        return { status: res.status, replay: res.headers.get("X-Idempotent-Replay"), tag: res.headers.get("ETag") !== null };
      },
      [base + path, method, alice, body && JSON.stringify(body)],
    );
  const direct = { type: "CHAT_TYPE_DIRECT", memberIds: ["bob"] };
  assert.deepEqual(await rest("POST", "/api/v1/chats", direct), { status: 201, replay: null, tag: false });
  assert.deepEqual(await rest("POST", "/api/v1/chats", direct), { status: 200, replay: "true", tag: false });
  assert.deepEqual(await rest("GET", "/api/v1/chats"), { status: 200, replay: null, tag: true });
  const chat = `/api/v1/chats/${await text("chat")}`;
  for (const [method, path, body] of [["PATCH", chat, { name: "" }], ["DELETE", `${chat}/members/a%20b`]]) {
    assert.equal((await rest(method, path, body)).status, 400, method);
  }

  // A page from elsewhere reaches nothing, not even with the token.
  const stranger = await browser.newPage();
  await stranger.goto(`http://parley.test:${port}/`);
  const outcome = await stranger.evaluate(
    ([url, bearer]) => fetch(url, { headers: { Authorization: `Bearer ${bearer}` } }).then((r) => `status ${r.status}`, (e) => e.name),
    [`${base}/api/v1/chats`, alice],
  );
  assert.equal(outcome, "TypeError");

  // The documents show themselves without breaking their own policy, and are searched.
  const docs = await browser.newPage();
  docs.on("console", (m) => m.type() === "error" && problems.push(m.text()));
  await docs.goto(`${base}/docs/reference`);
  assert.equal(await docs.locator("h1").textContent(), "Parley REST API v1");
  await docs.fill("#q", "NOT_A_MEMBER");
  await docs.press("#q", "Enter");
  await docs.waitForURL(`${base}/docs/search?q=NOT_A_MEMBER`);
  assert.ok((await docs.locator(".hits a").count()) > 0, "nothing was found");
  assert.notEqual(await docs.evaluate(() => getComputedStyle(document.body).maxWidth), "none");

  assert.deepEqual(await lines(6), ["1 alice: one", "2 bob: two", "3 alice: three", "4 bob: four", "5 bob: five", "6 bob: six"]);
  await tab.waitForFunction(() => window.heard.length >= 6);
  assert.deepEqual(await tab.evaluate(() => window.heard), ["one", "two", "three", "four", "five", "six"]);
  const tickets = await tab.evaluate(() => window.tickets);
  assert.ok(tickets >= 2, `${tickets} tickets for three runs of the server`);
  assert.deepEqual(problems, []);
  const held = await holding;
  assert.equal(held.streams, "1", "streams of an idle page");
  assert.ok(Number(held.heartbeats) >= 5, `${held.heartbeats} heartbeats in ${idle} ms`);
  assert.equal(held.seen.ended, "AbortError", JSON.stringify(held.seen));
  assert.equal(held.seen.hellos, 1);
  assert.ok(held.seen.heartbeats >= 5, JSON.stringify(held.seen));
  const seconds = ((Date.now() - began) / 1000).toFixed(1);
  console.log(`browser: ok, 6 messages in order over 3 runs of the server, an idle page with one stream and ${held.heartbeats} heartbeats, Chromium ${browser.version()}, ${seconds} s`);
} finally {
  await browser?.close();
  pages?.close();
  server?.kill("SIGKILL");
  calm?.kill("SIGKILL");
  rmSync(work, { recursive: true, force: true });
}
