// Profiles, against a server that is a function.
import assert from "node:assert/strict";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { ProfileSchema } from "../gen/parley/user/v1/user_pb.js";
import { Profiles } from "../dist/profiles.js";

const timeout = 60_000;
const profile = (userId, displayName, version) => create(ProfileSchema, { userId, displayName, version: BigInt(version) });

/** People by id, what was asked, and what is kept. */
function setUp({ limit, stored = [] } = {}) {
  const s = { people: new Map(), asked: [], errors: [], gate: undefined, kept: new Map(stored.map((p) => [p.userId, p])) };
  const storage = {
    loadProfiles: async () => [...s.kept.values()],
    storeProfiles: async (list, removed) => {
      for (const p of list) s.kept.set(p.userId, p);
      for (const id of removed) s.kept.delete(id);
    },
  };
  const fetch = async (known) => {
    s.asked.push(known);
    const error = s.errors.shift();
    if (error) throw error;
    const found = known.flatMap(({ userId, version }) => {
      const p = s.people.get(userId);
      return p && p.version !== version ? [p] : [];
    });
    await s.gate;
    return found;
  };
  s.is = (...list) => list.forEach((p) => s.people.set(p.userId, p));
  s.profiles = new Profiles(fetch, storage, limit);
  s.until = (holds) =>
    new Promise((done) => {
      const look = () => holds() && (clearInterval(timer), done());
      const timer = setInterval(look, 5);
      look();
    });
  return s;
}

const name = (s, id) => s.profiles.get(id)?.displayName;

test("names are asked for once, together, and only after the stream has begun", { timeout }, async () => {
  const s = setUp();
  s.is(profile("ann", "Ann", 1), profile("bob", "Bob", 2));
  s.profiles.start();
  for (const id of ["ann", "bob", "nobody", "ann"]) assert.equal(name(s, id), undefined);
  await new Promise((done) => setTimeout(done, 60));
  assert.deepEqual(s.asked, []);
  s.profiles.connected(true);
  await s.until(() => name(s, "ann") === "Ann" && name(s, "bob") === "Bob");
  assert.deepEqual(s.asked, [[{ userId: "ann" }, { userId: "bob" }, { userId: "nobody" }]]);
  assert.equal(name(s, "nobody"), undefined);
  await new Promise((done) => setTimeout(done, 60));
  assert.equal(s.asked.length, 1, "nobody is not asked for again");
  s.profiles.close();
});

test("a frame has a newer profile fetched, once more if an older one comes", { timeout }, async () => {
  const s = setUp();
  s.is(profile("ann", "Ann", 1));
  s.profiles.connected(true);
  await s.until(() => name(s, "ann") === "Ann");
  s.profiles.changed([{ userId: "stranger", version: 5n }, { userId: "ann", version: 1n }]);
  await new Promise((done) => setTimeout(done, 60));
  assert.equal(s.asked.length, 1, "nobody wants these");
  s.profiles.changed([{ userId: "ann", version: 2n }]);
  await s.until(() => s.asked.length === 2); // the server that answers is behind
  s.is(profile("ann", "Anna", 2));
  await s.until(() => name(s, "ann") === "Anna");
  assert.deepEqual(s.asked.slice(1), [[{ userId: "ann", version: 1n }], [{ userId: "ann", version: 1n }]]);
  s.profiles.close();
});

test("after a reload names are there at once, and are asked for by version", { timeout }, async () => {
  const s = setUp({ stored: [profile("ann", "Ann", 3), profile("bob", "Bob", 1)] });
  s.is(profile("ann", "Ann", 3), profile("bob", "Bobby", 2));
  let told = 0;
  const stop = s.profiles.subscribe(() => told++);
  s.profiles.start();
  await s.until(() => told === 1);
  assert.deepEqual([name(s, "ann"), name(s, "bob")], ["Ann", "Bob"]);
  s.profiles.connected(true);
  await s.until(() => name(s, "bob") === "Bobby");
  assert.deepEqual(s.asked, [[{ userId: "ann", version: 3n }, { userId: "bob", version: 1n }]]);
  assert.equal(s.kept.get("bob").displayName, "Bobby");
  s.profiles.connected(false);
  s.profiles.connected(true); // another stream: what changed meanwhile was not reported
  assert.equal(name(s, "ann"), "Ann");
  await s.until(() => s.asked.length === 2);
  stop();
  s.profiles.close();
});

test("there are never more than the limit, and those in use stay", { timeout }, async (t) => {
  const s = setUp({ limit: 3 });
  s.is(...["a", "b", "c", "d"].map((id) => profile(id, id.toUpperCase(), 1)));
  s.profiles.connected(true);
  await s.until(() => ["a", "b", "c"].map((id) => name(s, id)).every(Boolean));
  assert.equal(name(s, "d"), undefined);
  await new Promise((done) => setTimeout(done, 60));
  assert.equal(name(s, "d"), undefined, "the others are in use");
  assert.equal(s.asked.length, 1);
  const now = Date.now();
  t.mock.method(Date, "now", () => now + 120_000);
  assert.equal(name(s, "a"), "A"); // used just now
  await s.until(() => name(s, "d") === "D");
  assert.deepEqual([...s.kept.keys()].sort(), ["a", "c", "d"], "the one used longest ago made room");
  s.profiles.close();
});

test("a request that failed is repeated, one that was refused is not", { timeout }, async () => {
  const s = setUp();
  s.is(profile("ann", "Ann", 1));
  s.errors.push(new ConnectError("away", Code.Unavailable));
  s.profiles.connected(true);
  await s.until(() => name(s, "ann") === "Ann");
  assert.equal(s.asked.length, 2);
  s.errors.push(new ConnectError("no", Code.Unauthenticated));
  s.profiles.changed([{ userId: "ann", version: 2n }]);
  await s.until(() => s.asked.length === 3);
  await new Promise((done) => setTimeout(done, 1200));
  assert.equal(s.asked.length, 3);
  assert.equal(name(s, "ann"), "Ann");
  s.profiles.close();
});

test("one's own change is known at once, and an answer on its way does not undo it", { timeout }, async () => {
  const s = setUp();
  s.is(profile("ann", "Ann", 1));
  let open;
  s.gate = new Promise((done) => (open = done));
  s.profiles.connected(true);
  assert.equal(name(s, "ann"), undefined);
  await s.until(() => s.asked.length === 1);
  s.profiles.put(profile("ann", "Anna", 2));
  assert.equal(name(s, "ann"), "Anna");
  open();
  await new Promise((done) => setTimeout(done, 60));
  assert.equal(name(s, "ann"), "Anna");
  s.profiles.put(profile("ann", "Ann", 1));
  assert.equal(name(s, "ann"), "Anna", "an older one comes too late");
  s.profiles.close();
});
