// The service worker: a reload without a network shows the page, with the chats that the browser has stored. It keeps
// the files of the page only, all of one version, and nothing of the API. What the server answers comes first.

/** The paths of the files, each with the SHA-256 of its content: from the build. */
declare const SHELL: Record<string, string>;
/** Another one for each content of the files: from the build. */
declare const VERSION: string;

interface Lifecycle extends Event {
  waitUntil(done: Promise<unknown>): void;
  addRoutes?(routes: { condition: { requestMethod: string }; source: "network" }[]): Promise<void>;
}

interface FetchEvent extends Event {
  request: Request;
  respondWith(answer: Promise<Response>): void;
}

// The types of the page are those of a window.
const scope = self as unknown as EventTarget & { skipWaiting(): Promise<void> };
const prefix = "parley-shell-";
const cacheName = prefix + VERSION;
const patience = 4000; // with a server that does not answer

scope.addEventListener("install", (event) => {
  const install = event as Lifecycle;
  // Calls of the API need not wait until this script runs.
  const routed = install.addRoutes?.([{ condition: { requestMethod: "POST" }, source: "network" }]);
  install.waitUntil(Promise.all([routed, fill()]).then(() => scope.skipWaiting()));
});

scope.addEventListener("activate", (event) => (event as Lifecycle).waitUntil(dropOthers()));

scope.addEventListener("fetch", (event) => {
  const fetching = event as FetchEvent;
  const { request } = fetching;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== location.origin || !(pathname in SHELL)) return;
  fetching.respondWith(answer(request, pathname));
});

/** Fetches the files. Fails if the server has other ones by now, whose own worker comes next. */
async function fill() {
  const cache = await caches.open(cacheName);
  const files = Object.entries(SHELL).map(async ([path, hash]) => {
    const file = await fetch(path, { cache: "no-cache" });
    if (!file.ok || (await hashOf(file.clone())) !== hash) throw new Error(`parley: another version of ${path}`);
    await cache.put(path, file);
  });
  await Promise.all(files);
}

async function hashOf(file: Response): Promise<string> {
  const hash = await crypto.subtle.digest("SHA-256", await file.arrayBuffer());
  return Array.from(new Uint8Array(hash), (b) => b.toString(16).padStart(2, "0")).join("");
}

async function dropOthers() {
  for (const name of await caches.keys()) {
    if (name.startsWith(prefix) && name !== cacheName) await caches.delete(name);
  }
}

async function answer(request: Request, path: string): Promise<Response> {
  const kept = await caches.match(path, { cacheName, ignoreVary: true });
  if (!kept) return fetch(request);
  const fresh = fetch(request).then(
    (r) => (r.status >= 500 ? kept : r), // of a proxy whose server is down
    () => kept,
  );
  const late = new Promise<Response>((done) => setTimeout(() => done(kept), patience));
  return Promise.race([fresh, late]);
}
