// A machine with any of these mistakes does not pass the scenarios: each changes one place of its code.
import assert from "node:assert/strict";
import { cpSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { play } from "./play.mjs";
import { readSet } from "./set.mjs";

const mutants = {
  "poll.js": {
    "a stream that begins late is waited for": ["Math.min(helloTime, m.cfg.silence)", "m.cfg.silence"],
    "streams that a proxy ends are not counted": ["now - heard >= Math.min(shortLife, m.cfg.silence)", "now - heard >= m.cfg.silence"],
    "streams that are refused are counted": ["now - heard >= Math.min(shortLife, m.cfg.silence)", "true"],
    "polls begin after one stream": ["m.poll.mute >= maxMute", "m.poll.mute >= 1"],
    "streams are tried all the time": ["up ? streamsAgain :", ""],
    "no stream is tried once a poll works": ["m.stream.connectAt = now; // perhaps", "; // perhaps"],
    "streams are not tried more often while polls fail": ["Math.min(m.stream.connectAt, now + lastBackoff)", "m.stream.connectAt"],
    "a device whose polls fail is connected": ["m.poll.up = false;", ""],
    "a poll that was under way is enough": ["if (p.again)", "if (false)"],
    "polls keep their pace": ["p.wait * 1.5", "p.wait"],
    "news do not quicken polls": ["news ? firstPoll :", "false ? firstPoll :"],
    "polls go on without a network": ["!m.poll.works", "false"],
    "a message is not followed by a poll": ["m.poll.at = m.cfg.clock();", ""],
  },
  "stream.js": {
    "a hole in positions is ignored": ["res.firstPosition !== s.position + 1n", "false"],
    "silence is ignored": ["now - m.stream.heard >= silence(m)", "false"],
    "the device's clock says when a stream ends": ["expiresIn ? milliseconds(expiresIn) :", ""],
    "polls go on beside a stream": ["m.poll = noPolling();", ""],
    "mute streams are counted over one that began": ["m.poll.mute = 0;", ""],
    "a stream begins without a token": ["const token = m.session.token;", 'const token = "";'],
    "chats are named that are not loaded": [".filter((c) => c.record.loaded)", ""],
    "more than a hundred chats are named": ["list.slice(0, n)", "list"],
    "the oldest chats are named": ["at(b) > at(a) ? 1 : at(b) < at(a) ? -1 : 0", "at(b) > at(a) ? -1 : 1"],
    "a receipt before its chat is lost": ["m.early.set(id, body.value);", ";"],
    "a drain is waited for at once": ["if (tries > 0)", "if (true)"],
    "a complete stream does not begin waits anew": ["s.tries = 0;", ";"],
    "a stream is extended all the time": ["- m.cfg.extendBefore, lastBackoff", "- m.cfg.extendBefore, 0"],
    "a list is newer than every answer": ["if (c.seen < from)", "if (true)"],
    "a list is older than every answer": ["if (c.seen < from)", "if (false)"],
    "known chats that are not the user's stay": ["notAMember(m, c, m.stream.known.get(id) ?? 0n)", "undefined"],
    "an end's token is not stored": ["m.setToken(body.value.token);", ";"],
    "a revoked session connects again": ["case EndCode.SESSION_REVOKED:", ""],
    "a heartbeat's token is not stored": ["        m.setToken(token);", ";"],
    "a refused token is kept": ['if (why.reason === "INVALID_TOKEN")', "if (false)"],
  },
  "history.js": {
    "what came before the first generation stays": ["m.chats.size + m.left.size + m.sending.size > 0", "false"],
    "what came before the first answer that names a generation stays": ["else if (m.unnamed)", "else if (false)"],
    "an answer that may lack something counts": ["else if (asked !== historyOf(s))", "else if (false)"],
    "commits go down": ["commit > shown ? commit : shown", "commit"],
    "a stream of an earlier generation goes on": ['s.generation === "" || reach', 'true || reach'],
    "a refusal of what was said before counts": ["|| asked !== historyOf(m.session)", ""],
    "what the app got counts in every generation": ['shows.of === m.session.generation && reach(m, "", shows.of, shows.commit)', "true"],
    "what the app got raises no commit": ['&& reach(m, "", shows.of, shows.commit)', ""],
    "a refusal keeps versions": ["m.dropVersions();\n    m.session =", "m.session ="],
  },
  "chat.js": {
    "the last state stands": ["const newest = stale ? old : s;", "const newest = s;"],
    "read marks go down": ["const readSequence = most(s.readSequence, old?.readSequence ?? 0n);", "const { readSequence } = s;"],
    "what the other has read goes down": [
      "peerReadSequence: most(s.peerReadSequence, old?.peerReadSequence ?? 0n)",
      "peerReadSequence: s.peerReadSequence",
    ],
    "own messages that a state lacks are unread": ["ownUnreadCount + later.count", "ownUnreadCount"],
    "old answers bring a chat back": ["if (version < left)", "if (false)"],
    "every removal counts": ["if (!c || version > c.record.newest)", "if (true)"],
    "every NOT_A_MEMBER counts": ["if (c.record.newest > newest)", "if (false)"],
    "a new membership keeps messages": ["(ov.state?.joinedSequence ?? 0n) > (r.state?.joinedSequence ?? 0n)", "false"],
    "an old overview is as new as the messages": ["else if (version >= r.base)", "else"],
    "an older head counts": ["h.version > (this.record.head?.version ?? 0n)", "true"],
    "a reset keeps what is stored": ["        this.clear = true;", ";"],
  },
  "view.js": {
    "what the other has read is not shown": ["state?.peerReadSequence ?? 0n", "0n"],
    "own messages are unread": [" - (state?.ownUnreadCount ?? 0n)", ""],
  },
  "change.js": {
    "what follows is not asked": ["r.loaded && after <= r.version && r.version < version", "r.loaded && r.version < version"],
    "changes repeat": ["r.loaded && after <= r.version && r.version < version", "r.loaded && after <= r.version"],
    "merged changes are counted": ["!r.chat || b.merged ||", "!r.chat ||"],
    "the head follows on anything": ["after > h.version || ", ""],
    "the list does not follow": ["!r.loaded && r.knownAt > 0n && after <= r.knownAt", "false && after <= r.knownAt"],
    "members are not counted": ["mc.version > r.chat.version && mc.memberCount > 0", "false"],
    "own messages are unread": ["if (b.message.senderId === c.m.cfg.userId)", "if (false)"],
    "own messages count again": ["ownSequence <= most(s.readSequence, s.ownSequence)", "ownSequence <= s.readSequence"],
    "an own change leaves the role": ["c.forgetState(); // for the role", "; // for the role"],
  },
  "content.js": {
    "an old member list is taken": ["if (c.pagesHead >= c.record.base)", "if (true)"],
    "a member list is its last page": ["c.pages.push(...r.members)", "c.pages = [...r.members]"],
    "merged memberships are believed": ["if (b.membershipChange?.kind === MembershipChange_Kind.ROLE_CHANGED)", "if (false)"],
    "older changes of members win": ["if (old && now.version <= old.version)", "if (false)"],
    "an old list of members wins": ["old && old.version > version ? old :", "false ? old :"],
    "a reset of changes is ignored": ["if (res.reset)", "if (false)"],
    "older pages are not at the front": ["c.record.first = r.messages[0].sequence;", ";"],
    "an old message replaces a new one": ["else if (msg.version > old.version)", "else if (true)"],
  },
  "outbox.js": {
    "an answer of another generation counts": ["if (!f || f.call !== call)", "if (!f)"],
    "messages are sent for seven days and more": ["sendMemory - sendMargin", "sendMemory"],
    "the stream has no time to bring what was sent": ["if (behind && m.stream.complete)", "if (false)"],
    "an Ack has any number of marks": ["marks.length === maxMarks", "false"],
    "marks do not wait": ["&& now >= c.retryAt", ""],
    "an answer to an old mark ends a new one": ["if (c.record.readTo <= k.sequence)", "if (true)"],
    "marks always go with Acks": ["s.marksApart ||= apart;", ";"],
    "a refused message goes again": ["case Code.PermissionDenied:", ""],
    "a sent message is not shown": ["change(c, version - 1n, version, { message });", ";"],
    "marks go one by one": ["m.chats.get(c.id) === c && unmarked(c)", "false"],
  },
  "plan.js": {
    "any number of reads": ["m.reads >= maxReads", "false"],
    "chats are read with every change": ["r.loaded ? r.base : r.newest", "r.newest"],
    "a chat that waits does not wait": ["if (now < c.retryAt)", "if (false)"],
    "nobody wakes for waiting messages": ["add(f.at);", ";"],
    "nobody wakes for silence": ["add(s.heard + silence(m));", ";"],
  },
  "results.js": {
    "a page token of long ago stays": ['m.sync.page = ""; // a page token', "; // a page token"],
    "a refusal of the server is no answer": ['why && (why.reason !== "" || why.code === Code.Unauthenticated)', "false"],
    "a refusal's time is not kept": ["why?.retryAfter ?? 0", "0"],
    "a token of another store is kept": ["m.resync();", ""],
    "a chat that a poll shows again is news": ["> c.record.newest; // some", ">= c.record.newest; // some"],
    "an old answer is asked for at once": ["c.pause(); // older than", "; // older than"],
    "a refused refresh goes on": ["why.code === Code.Unauthenticated || why.code === Code.PermissionDenied", "false"],
    "a failed page of members goes on": ['// from the first page\n        c.pageToken = "";', ""],
    "a failed older page is forgotten": ["c.wantOlder = true; // as long", "; // as long"],
    "left chats stay": ["removed(m, l.chatId, l.version);", ";"],
    "a full list adds": ["if (res.full)", "if (false)"],
  },
  "machine.js": {
    "marks of another generation stay": ["r.state = undefined;", ";"],
    "nothing is dropped in storage": ["clear: c.clear,", "clear: false,"],
    "waits have no end": ["Math.min(firstBackoff * 2 ** Math.min(tries, 16), lastBackoff)", "firstBackoff * 2 ** tries"],
    "waits do not grow": ["firstBackoff * 2 ** Math.min(tries, 16)", "firstBackoff"],
    "a token that is refused is not renewed": ["else if (why.code === Code.Unauthenticated)", "else if (false)"],
  },
};

const package_ = new URL("..", import.meta.url);
after(() => rmSync(new URL("mutants", package_), { recursive: true, force: true }));

test("mistakes are noticed", async (t) => {
  const set = readSet();
  let count = 0;
  const unnoticed = [];
  for (const [file, list] of Object.entries(mutants)) {
    for (const [name, [from, to]] of Object.entries(list)) {
      const dir = new URL(`mutants/${++count}/`, package_);
      cpSync(new URL("dist/device", package_), dir, { recursive: true });
      const path = fileURLToPath(new URL(file, dir));
      const code = readFileSync(path, "utf8");
      assert.equal(code.split(from).length, 2, `${file} has "${from}" once, for: ${name}`);
      writeFileSync(path, code.replace(from, () => to));
      const device = await import(new URL("index.js", dir));
      if (!set.some((scenario) => fails(device, scenario))) unnoticed.push(`${file}: ${name}`);
    }
  }
  assert.deepEqual(unnoticed, []);
  t.diagnostic(`${count} mistakes`);
});

function fails(device, scenario) {
  try {
    play(device, scenario);
    return false;
  } catch {
    return true;
  }
}
