// The rules of a client without connections, disk and timers, for whoever runs them in another way.
export { Machine } from "./machine.js";
export * from "./types.js";
export { emptySnapshot, storeInto } from "./snapshot.js";
export { type ChatView, viewIn, viewOf } from "./view.js";
