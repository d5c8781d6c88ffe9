// Has the service worker installed, once the page is loaded.

const path = "/app/worker.js";

interface TrustedTypes {
  createPolicy(name: string, rules: { createScriptURL(): string }): { createScriptURL(url: string): string };
}

/** Does nothing where a browser allows no service worker, for example over http from another machine. */
export function keepPage() {
  const { serviceWorker } = navigator as { serviceWorker?: ServiceWorkerContainer };
  if (!serviceWorker) return;
  // The policy of the page allows this one script only.
  const { trustedTypes } = window as { trustedTypes?: TrustedTypes };
  const script = trustedTypes?.createPolicy("worker", { createScriptURL: () => path }).createScriptURL(path) ?? path;
  const register = () => serviceWorker.register(script, { scope: "/" }).catch(() => {}); // the page works without
  if (document.readyState === "complete") void register();
  else addEventListener("load", register, { once: true });
}
