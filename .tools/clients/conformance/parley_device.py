"""What a device of Parley keeps of its chats: on disk, in memory, and how it shows them.

Nothing here knows a connection. Handlers change the memory and the open SQLite transaction together;
commit() ends the transaction.
"""

import json
import os
import random
import sqlite3
import sys
import time

from parley.chat.v1 import chat_pb2
from parley.message.v1 import message_pb2

KIND = message_pb2.MembershipChange
VERBOSE = bool(os.environ.get("PARLEY_LOG"))


def log(*words):
    """Writes a line to standard error if PARLEY_LOG is set."""
    if VERBOSE:
        print("%.3f" % elapsed(), *words, file=sys.stderr, flush=True)


class Elapsed:
    """Seconds of elapsed time, with the time in which the device slept."""

    def __init__(self):
        self.slept, self.last = 0.0, None

    def __call__(self):
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        steady, wall = time.monotonic(), time.time()
        if self.last:  # a wall clock that ran far ahead of the other: the device slept
            ahead = (wall - self.last[1]) - (steady - self.last[0])
            self.slept += ahead if ahead > 10 else 0
        self.last = (steady, wall)
        return steady + self.slept


elapsed = Elapsed()


class Failed(Exception):
    """A call that brought no answer to use. again: ask once more, nothing is wrong."""

    def __init__(self, code, reason="", least=0.0, again=False):
        super().__init__(code, reason)
        self.code, self.reason, self.least, self.again = code, reason, least, again


class Backoff:
    """Waits that double from 500 ms to 30 s, each by a random part."""

    def __init__(self):
        self.tries = 0

    def next(self):
        """The next wait, in seconds."""
        wait = min(30.0, 0.5 * 2 ** min(self.tries, 10))
        self.tries += 1
        return wait * random.random()


class Item:
    """A message of the outbox. answered: its version, while the chat's copy does not have it yet."""

    def __init__(self, number, key, chat, text, answered, age):
        self.number, self.key, self.chat, self.text, self.answered = number, key, chat, text, answered
        self.born = elapsed() - age


class Chat:
    """What the client keeps of one chat."""

    NUMBERS = ("base", "seen", "own", "open", "need_chat", "members_need", "members_at", "fresh", "mark", "mine")

    def __init__(self, chat_id):
        self.id = chat_id
        self.chat = self.head = self.state = None  # the overview
        self.base = 0  # version of the newest overview
        self.seen = 0  # newest version known to exist
        self.own = None  # version applied to messages and members; None: not loaded
        self.open = False  # the user opened it: messages and members are wanted
        self.need_chat = False  # the overview must be read again
        self.members_need, self.members_at = 0, -1  # version the list of members must have, and has
        self.fresh = False  # the user joined anew: the next state replaces the old one
        self.mark = 0  # read position that the server has not confirmed
        self.mine = []  # sequences of the user's own messages after the read position
        self.messages = {}  # by sequence
        self.members = {}  # user: (role or 0 if removed, version)
        self.loads = 0  # grows when messages are dropped; not stored
        self.older = 0  # pages of older messages that are wanted; not stored
        self.first = False  # the oldest message is here; not stored
        self.gap_after = 0.0  # a gap is left to the stream until then; not stored

    def read(self):
        """How far the user has read."""
        return max(self.mark, self.state.read_sequence if self.state else 0)

    def top(self):
        """Sequence of the newest message that is known."""
        return max(self.head.sequence if self.head else 0, max(self.mine, default=0),
                   self.state.own_sequence if self.state else 0)

    def unread(self):
        """The number of unread messages."""
        if not self.state:
            return 0
        read, state = self.read(), self.state
        if read > state.read_sequence:
            own = sum(1 for s in self.mine if s > read)
            own = max(own, 1 if state.own_sequence > read else 0)
        else:
            own = state.own_unread_count + sum(1 for s in self.mine if s > max(read, state.own_sequence))
        return max(0, self.top() - read - own)

    def run(self):
        """The newest messages without a gap, oldest first."""
        out, want = [], None
        for s in sorted(self.messages, reverse=True):
            if want is not None and s != want:
                break
            out.append(self.messages[s])
            want = s - 1
        return out[::-1]


class Device:
    """The chats, the outbox and the places of one device of a user. Client adds the connection."""

    def __init__(self, user, directory, wall_ms):
        self.user, self.wall_ms = user, wall_ms
        self.chats, self.left, self.outbox, self.refused = {}, {}, [], []
        self.wanted = set()  # chats to open as soon as they are known
        self.token = self.place = self.generation = None
        self.epoch = 0  # grows when all versions are dropped
        self.stream, self.polling, self.stopped = None, False, False
        self.dirty = set()  # chats to store
        self.db = sqlite3.connect(os.path.join(directory, "parley.sqlite"))
        self.load()

    def work_on(self, c):
        """Begins the work that follows from what a chat has now."""

    def close_stream(self):
        """Ends the stream that is open."""

    # ---- storage

    def load(self):
        """Reads what an earlier process stored."""
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.executescript("""
            CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value TEXT);
            CREATE TABLE IF NOT EXISTS left_chats(id TEXT PRIMARY KEY, version INTEGER);
            CREATE TABLE IF NOT EXISTS chats(id TEXT PRIMARY KEY, numbers TEXT, chat BLOB, head BLOB, state BLOB);
            CREATE TABLE IF NOT EXISTS messages(chat TEXT, sequence INTEGER, body BLOB, PRIMARY KEY(chat, sequence));
            CREATE TABLE IF NOT EXISTS members(chat TEXT, user TEXT, role INTEGER, version INTEGER,
              PRIMARY KEY(chat, user));
            CREATE TABLE IF NOT EXISTS outbox(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, chat TEXT,
              text TEXT, wall REAL, answered INTEGER);""")
        rows = lambda q: self.db.execute(q).fetchall()
        meta = {k: json.loads(v) for k, v in rows("SELECT * FROM meta")}
        self.token, self.generation = meta.get("token"), meta.get("generation")
        self.place = tuple(meta["place"]) if meta.get("place") else None
        self.left = dict(rows("SELECT * FROM left_chats"))
        for cid, numbers, chat, head, state in rows("SELECT * FROM chats"):
            c = self.chats[cid] = Chat(cid)
            vars(c).update(json.loads(numbers))
            c.chat = chat_pb2.Chat.FromString(chat) if chat is not None else None
            c.head = chat_pb2.ChatHead.FromString(head) if head is not None else None
            c.state = chat_pb2.MemberState.FromString(state) if state is not None else None
        for cid, sequence, body in rows("SELECT * FROM messages"):
            self.chats[cid].messages[sequence] = message_pb2.Message.FromString(body)
        for cid, user, role, version in rows("SELECT * FROM members"):
            self.chats[cid].members[user] = (role, version)
        now = self.wall()
        for n, key, cid, text, wall, answered in rows("SELECT * FROM outbox ORDER BY number"):
            if wall > now:  # the clock was ahead: the age begins now
                self.db.execute("UPDATE outbox SET wall=? WHERE number=?", (now, n))
            self.outbox.append(Item(n, key, cid, text, answered, max(0.0, now - wall)))
        self.meta = None

    def wall(self):
        """The wall clock, in seconds."""
        return time.time() + self.wall_ms / 1000

    def commit(self):
        """Stores all that changed, then begins the work that follows from it."""
        dirty, self.dirty = self.dirty, set()
        for cid in dirty:
            c = self.chats.get(cid)
            if not c:
                continue
            if c.state:
                c.mine = [s for s in c.mine if s > c.state.read_sequence]
            self.db.execute("INSERT OR REPLACE INTO chats VALUES(?,?,?,?,?)", (
                cid, json.dumps({k: getattr(c, k) for k in Chat.NUMBERS}),
                *(m.SerializeToString() if m is not None else None for m in (c.chat, c.head, c.state))))
        for item in [i for i in self.outbox if i.answered is not None]:
            c = self.chats.get(item.chat)
            if not c or not c.open or (c.own or 0) >= item.answered:
                self.forget_item(item)
        meta = (self.token, self.place, self.generation)
        if meta != self.meta:
            self.meta = meta
            self.db.executemany("INSERT OR REPLACE INTO meta VALUES(?,?)", [
                (k, json.dumps(v)) for k, v in zip(("token", "place", "generation"), meta)])
        self.db.commit()
        for cid in dirty:
            if cid in self.chats:
                self.work_on(self.chats[cid])

    def touch(self, c):
        """Marks a chat as changed."""
        self.dirty.add(c.id)

    def put_message(self, c, m):
        """Keeps a message in its newest version."""
        old = c.messages.get(m.sequence)
        if old is None or m.version >= old.version:
            c.messages[m.sequence] = m
            self.db.execute("INSERT OR REPLACE INTO messages VALUES(?,?,?)", (c.id, m.sequence, m.SerializeToString()))
        self.note_message(c, m)

    def note_message(self, c, m):
        """Takes from a message what concerns the head, the unread count and the outbox."""
        if not c.head:
            c.head = chat_pb2.ChatHead()
        c.head.sequence = max(c.head.sequence, m.sequence)
        if m.sender_id == self.user:
            if m.sequence > (c.state.read_sequence if c.state else 0) and m.sequence not in c.mine:
                c.mine.append(m.sequence)
            for item in [i for i in self.outbox if i.key == m.client_message_id.lower()]:
                self.forget_item(item)
        self.touch(c)

    def put_member(self, c, user, role, version):
        """Keeps a membership in its newest version; role 0 is a removal."""
        if version >= c.members.get(user, (0, -1))[1]:
            c.members[user] = (role, version)
            self.db.execute("INSERT OR REPLACE INTO members VALUES(?,?,?,?)", (c.id, user, role, version))

    def forget_item(self, item):
        """Takes a message out of the outbox."""
        if item in self.outbox:
            self.outbox.remove(item)
        self.db.execute("DELETE FROM outbox WHERE number=?", (item.number,))

    def unload(self, c):
        """Drops messages and members of a chat."""
        c.messages, c.members, c.own, c.first = {}, {}, None, False
        c.members_need, c.members_at = 0, -1
        c.loads += 1
        self.db.execute("DELETE FROM messages WHERE chat=?", (c.id,))
        self.db.execute("DELETE FROM members WHERE chat=?", (c.id,))
        self.touch(c)

    def drop(self, cid, version):
        """Ends a chat: the user was removed in this version."""
        log("drop", cid, version)
        self.left[cid] = max(version, self.left.get(cid, 0))
        self.db.execute("INSERT OR REPLACE INTO left_chats VALUES(?,?)", (cid, self.left[cid]))
        self.wanted.discard(cid)
        c = self.chats.pop(cid, None)
        if c:
            self.unload(c)
            self.db.execute("DELETE FROM chats WHERE id=?", (cid,))

    def forget(self, keep_place=False):
        """Drops all versions and the token: the store is another one, or says so. The outbox stays."""
        log("forget everything")
        self.epoch += 1
        self.token = None
        self.wanted |= {c.id for c in self.chats.values() if c.open}
        marks = {c.id: c.mark for c in self.chats.values() if c.mark}
        self.chats, self.left = {}, {}
        for table in ("chats", "messages", "members", "left_chats"):
            self.db.execute("DELETE FROM " + table)
        for item in [i for i in self.outbox if i.answered is not None]:
            self.forget_item(item)
        if keep_place:
            for cid, mark in marks.items():
                self.make(cid).mark = mark
        else:
            self.place = self.generation = None
        self.close_stream()

    # ---- what the server says of chats

    def make(self, cid):
        """The chat of this id, made if it is not known."""
        c = self.chats.get(cid)
        if not c:
            c = self.chats[cid] = Chat(cid)
            c.open = cid in self.wanted
        self.touch(c)
        return c

    def start_over(self, c, version):
        """The user is a member anew, in this version: what was kept holds no more."""
        log("start over", c.id, version)
        self.unload(c)
        c.mine, c.mark = [], 0
        c.seen = max(c.seen, version)
        if c.base < version:
            c.need_chat = c.fresh = True

    def take_overview(self, o):
        """Takes a chat as the list shows it; says whether its version is news."""
        version = o.head.version
        if version <= self.left.get(o.chat.chat_id, 0):
            return False
        c = self.make(o.chat.chat_id)
        news = version > c.seen
        if c.state and o.state.joined_sequence > c.state.joined_sequence and version > c.base:
            self.start_over(c, version)
            c.fresh = True
        self.take_chat(c, o.chat)
        self.take_head(c, o.head)
        c.base, c.seen = max(c.base, version), max(c.seen, version)
        if c.fresh:
            c.state, c.fresh = o.state, False
        else:
            self.take_state(c, o.state)
        return news

    def take_chat(self, c, chat):
        """Takes the metadata of a chat, if it is not older."""
        if c.chat is None or chat.version >= c.chat.version:
            c.chat = chat
            self.touch(c)

    def take_head(self, c, head):
        """Takes a head; it never goes back."""
        if c.head is None:
            c.head = chat_pb2.ChatHead()
        if head.version >= c.head.version:
            sequence = max(c.head.sequence, head.sequence)
            c.head.CopyFrom(head)
            c.head.sequence = sequence
        c.seen = max(c.seen, head.version)
        self.touch(c)

    def take_state(self, c, new):
        """Takes the user's own state: marks only go up, the rest is that of the higher revision."""
        self.touch(c)
        old = c.state
        if old is None:
            c.state = new
            return
        newer = new.revision > old.revision
        out = chat_pb2.MemberState()
        out.CopyFrom(new if newer else old)
        if new.revision == old.revision and new.own_sequence > old.own_sequence:
            out.own_sequence, out.own_unread_count = new.own_sequence, new.own_unread_count
        for name in ("read_sequence", "delivered_sequence", "peer_read_sequence"):
            setattr(out, name, max(getattr(old, name), getattr(new, name)))
        c.state = out
        counted = [s for s in c.mine if s > max(out.own_sequence, out.read_sequence)]
        if newer and counted:
            here = set(c.messages) | set(c.mine)
            if any(s not in here for s in range(max(out.own_sequence, out.read_sequence) + 1, max(counted))):
                c.need_chat = True

    def take_membership(self, c, m):
        """Applies a change of another's or the user's membership."""
        if c.own is not None:
            self.put_member(c, m.user_id, 0 if m.kind == KIND.KIND_REMOVED else m.role, m.version)
        if m.member_count and c.chat and m.version > c.chat.version:
            c.chat.member_count = m.member_count  # the version stays: it guards the name, too
        self.touch(c)

    # ---- what the app does and shows

    def open(self, chat):
        """The user opens a chat."""
        self.wanted.add(chat)
        if chat in self.chats:
            self.chats[chat].open = True
            self.touch(self.chats[chat])
            self.commit()

    def older(self, chat):
        """The user scrolls up."""
        c = self.chats.get(chat)
        if c and c.open:
            c.older += 1
            self.touch(c)
            self.commit()

    def connection(self):
        """A word for the state of the connection."""
        if self.stopped:
            return "stopped"
        if self.stream and self.stream.complete.is_set():
            return "live"
        return "delayed" if self.polling else "connecting"

    def show(self):
        """What an app would show now."""
        roles, chats = {1: "owner", 2: "admin", 3: "member"}, []
        for c in self.chats.values():
            if c.chat is None or c.state is None:
                continue
            direct = c.chat.type == chat_pb2.CHAT_TYPE_DIRECT
            out = {"chat": c.id, "title": "" if direct else c.chat.name, "unread": c.unread(), "read": c.read(),
                   "peerRead": c.state.peer_read_sequence if direct else 0, "head": c.top()}
            if c.open:
                out["members"] = [{"user": u, "role": roles[r]} for u, (r, _) in c.members.items() if r in roles]
                out["messages"] = [{"sequence": m.sequence, "sender": m.sender_id, "text": m.content} for m in c.run()]
            chats.append(out)
        return {"connection": self.connection(), "chats": chats, "outbox": [i.text for i in self.outbox],
                "refused": self.refused}
