"""A client of Parley: keeps a device's copy of its chats up to date, over gRPC.

Everything runs on one asyncio loop. Each call first commits what led to it (see parley_device), so what
is on disk is never behind what the server was asked for.

Needs the stubs of the contracts on the module search path.
"""

import asyncio
import random
import uuid

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2
from parley.chat.v1 import chat_pb2, chat_service_pb2, chat_service_pb2_grpc
from parley.delivery.v1 import delivery_service_pb2, delivery_service_pb2_grpc, frame_pb2
from parley.message.v1 import message_pb2, message_service_pb2, message_service_pb2_grpc
from parley_device import KIND, Backoff, Device, Failed, Item, elapsed, log

CALL_SECONDS = 15  # how long a call may take
HELLO_SECONDS = 15  # a stream without a hello for so long is mute
SILENCE_SECONDS = 50  # a stream without any frame for so long is dead
WEEK = 7 * 24 * 3600  # how long the server remembers the id of a message
HISTORY = "parley-history"
REFUSED = {"INVALID_ARGUMENT", "PERMISSION_DENIED", "NOT_FOUND", "ALREADY_EXISTS",
           "FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED"}


class Client(Device):
    """One device of a user. The two functions are told: a token is wanted, a message is stored."""

    def __init__(self, url, user, token, directory, wall_ms, on_want, on_sent):
        super().__init__(user, directory, wall_ms)
        self.target = url.split("://", 1)[-1].rstrip("/")
        self.on_want, self.on_sent = on_want, on_sent
        self.bearer, self.bearer_ok, self.bearer_at, self.asking = token, False, None, False
        self.authorized, self.bearer_came = asyncio.Event(), asyncio.Event()
        self.authorized.set()
        self.mute = 0  # streams in a row without a hello
        self.poll_now, self.marks_due, self.kicked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.reads = asyncio.Semaphore(8)
        self.jobs = {}
        self.renew_channel(None)

    # ---- the connection

    def renew_channel(self, old):
        """Opens a new connection for calls, if the old one is still the present one."""
        if old is not None and old is not self.channel:
            return
        if old is not None:
            asyncio.ensure_future(old.close(60))
        self.channel = self.new_channel()
        self.delivery = delivery_service_pb2_grpc.DeliveryServiceStub(self.channel)
        self.chat_service = chat_service_pb2_grpc.ChatServiceStub(self.channel)
        self.message_service = message_service_pb2_grpc.MessageServiceStub(self.channel)

    def new_channel(self):
        """A channel with a connection of its own that is tried again quickly."""
        return grpc.aio.insecure_channel(self.target, options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", 200), ("grpc.min_reconnect_backoff_ms", 2000),
            ("grpc.max_reconnect_backoff_ms", 2000), ("grpc.max_receive_message_length", 64 << 20)])

    def metadata(self):
        """Headers of a call."""
        out = [("authorization", "Bearer " + self.bearer)]
        if self.place:
            out.append((HISTORY, "%s-%d" % self.place))
        return out

    def set_token(self, token):
        """Takes a new bearer token."""
        self.bearer, self.bearer_ok, self.bearer_at, self.asking = token, False, elapsed(), False
        self.authorized.set()
        self.bearer_came.set()
        self.bearer_came = asyncio.Event()

    def want_token(self):
        """Asks for another token, once."""
        if not self.asking and not self.stopped:
            self.asking = True
            self.on_want()

    def unauthorized(self, used, reason):
        """A call with this token was refused."""
        if reason == "SESSION_REVOKED":
            return self.stop("session revoked")
        if used != self.bearer:
            return
        if not self.bearer_ok and self.bearer_at is not None and elapsed() - self.bearer_at < 10:
            return self.stop("new token refused")
        self.authorized.clear()
        self.want_token()

    def stop(self, why):
        """Ends all work; a person decides what comes next."""
        log("stopped:", why)
        self.stopped = True
        self.authorized.clear()
        self.close_stream()

    @staticmethod
    def history(*metadata):
        """The header Parley-History among these, as a pair, or None."""
        for pairs in metadata:
            for key, value in pairs or ():
                if key == HISTORY:
                    generation, _, commit = value.rpartition("-")
                    return (generation, int(commit))
        return None

    def take_place(self, said, place):
        """Compares the place of an answer with the stored one; says whether the answer may be applied."""
        if self.place is None:
            if said is not None:
                return False
            if (self.token or self.chats) and self.generation != place[0]:
                self.forget()
                return False
            self.place, self.generation = place, place[0]
            return True
        if place[0] == self.place[0]:
            self.place = max(self.place, place, key=lambda p: p[1])
            return True
        if said != self.place:
            return False
        log("new generation", self.place, place)
        self.place, self.generation = place, place[0]
        if self.stream and self.stream.generation not in (None, place[0]):
            self.close_stream()
        return True

    def failure(self, error, used, said):
        """Turns an error of gRPC into one of ours, and does what it asks for."""
        code, reason, least = error.code().name, "", 0.0
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                for detail in status_pb2.Status.FromString(value).details:
                    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
                    if detail.Unpack(info):
                        reason = info.reason
                    elif detail.Unpack(retry):
                        least = retry.retry_delay.ToTimedelta().total_seconds()
        log("failed", code, reason, (error.details() or "")[:100])
        if code == "UNAUTHENTICATED":
            self.unauthorized(used, reason)
            return Failed(code, reason, again=not self.stopped)
        if code == "ABORTED" and reason == "HISTORY_CHANGED":
            if said == self.place:
                self.forget()
                self.commit()
            return Failed(code, reason, again=True)
        place = self.history(error.initial_metadata(), error.trailing_metadata())
        if place and not self.take_place(said, place):
            return Failed(code, reason, again=True)
        return Failed(code, reason, least)

    async def call(self, service, name, request):
        """Makes a call; raises Failed. Commits first, so that what led to the call is stored."""
        self.commit()
        while True:
            await self.authorized.wait()
            used, said, epoch, channel = self.bearer, self.place, self.epoch, self.channel
            call = getattr(getattr(self, service), name)(request, metadata=self.metadata(), timeout=CALL_SECONDS)
            try:
                answer = await call
                headers = await call.initial_metadata()
            except grpc.aio.AioRpcError as e:
                if e.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                    self.renew_channel(channel)
                failed = self.failure(e, used, said)
                if failed.code == "UNAUTHENTICATED" and failed.again:
                    continue
                raise failed from None
            self.bearer_ok = self.bearer_ok or used == self.bearer
            place = self.history(headers)
            if place and not self.take_place(said, place) or epoch != self.epoch:
                self.commit()
                raise Failed("ABORTED", "MOVED", again=True)
            if not place and name == "Sync" and answer.generation:
                self.older_server(answer.generation)
            return answer

    def older_server(self, generation):
        """A server that counts no commits: another generation drops all versions."""
        known = self.place[0] if self.place else self.generation
        if known != generation and (known or self.token or self.chats):
            self.forget()
            self.generation = generation
            self.commit()
            raise Failed("ABORTED", "GENERATION", again=True)
        self.place, self.generation = None, generation

    async def pause(self, seconds, least=0.0):
        """Waits; a connection that works ends the wait early, but not before least."""
        await asyncio.sleep(least)
        try:
            await asyncio.wait_for(self.kicked.wait(), max(0.0, seconds - least))
        except asyncio.TimeoutError:
            pass

    def kick(self):
        """Ends all pauses."""
        self.kicked.set()
        self.kicked = asyncio.Event()

    # ---- the stream

    class Stream:
        """One stream and how far it is."""

        def __init__(self, channel, said, epoch):
            self.channel, self.said, self.epoch = channel, said, epoch
            self.id = self.generation = None
            self.next = 1  # position of the next frame
            self.acked = 0
            self.complete = asyncio.Event()
            self.listed = None  # chats that a full list named so far
            self.known, self.closed = set(), False
            self.opened = self.heard = elapsed()
            self.expires = None

    def close_stream(self):
        """Ends the stream that is open."""
        if self.stream:
            self.stream.closed = True

    async def run(self):
        """Keeps the client connected, for ever."""
        for c in list(self.chats.values()):
            self.touch(c)
        self.commit()
        self.pump_outbox()
        self.job("marks", self.send_marks)
        backoff = Backoff()
        while not self.stopped:
            await self.authorized.wait()
            least, own, begun = 0.0, True, elapsed()
            try:
                if self.mute >= 2:
                    await self.poll()
                    continue
                if not self.token:
                    await self.sync()
                least, own = await self.subscribe(backoff)
            except Failed as e:
                log("stream", e)
                least, own = e.least, not e.again
                if e.again and elapsed() - begun < 0.05:
                    least = 0.05
            if not self.stopped:
                await asyncio.sleep(max(least, backoff.next() if own else 0.0))

    async def subscribe(self, backoff):
        """Runs one stream to its end; returns the least wait and whether to wait as after a failure."""
        self.commit()
        loaded = [c for c in self.chats.values() if c.own is not None][:100]
        request = delivery_service_pb2.SubscribeRequest(token=self.token or "", known_chats=[
            delivery_service_pb2.KnownChat(chat_id=c.id, version=c.own) for c in loaded])
        s = self.stream = self.Stream(self.new_channel(), self.place, self.epoch)
        s.known = {c.id for c in loaded}
        used, end, extend, read = self.bearer, None, None, None
        call = delivery_service_pb2_grpc.DeliveryServiceStub(s.channel).Subscribe(request, metadata=self.metadata())
        log("subscribe", self.token, len(loaded), self.place)
        try:
            while not s.closed and end is None:
                if read is None:
                    read = asyncio.ensure_future(call.read())
                await asyncio.wait({read}, timeout=0.5)
                now = elapsed()
                if not read.done():
                    if s.id is None and now - s.opened > HELLO_SECONDS:
                        self.mute += 1
                        log("mute", self.mute)
                        return 0.0, True
                    if now - s.heard > SILENCE_SECONDS:
                        log("silence")
                        return 0.0, True
                    continue
                answer, read = read.result(), None
                if answer is grpc.aio.EOF:
                    break
                s.heard = now
                if s.closed:
                    break
                self.bearer_ok = self.bearer_ok or used == self.bearer
                end = self.take_response(s, answer, backoff)
                self.commit()
                if s.id and extend is None:
                    extend = asyncio.ensure_future(self.extend(s))
            if end is None and not s.closed and await call.code() != grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(await call.code(), await call.initial_metadata(),
                                           await call.trailing_metadata(), await call.details())
        except grpc.aio.AioRpcError as e:
            failed = self.failure(e, used, s.said)
            self.count_mute(s, failed)
            if failed.reason == "INVALID_TOKEN":
                self.token, failed.again = None, True
            raise failed from None
        finally:
            s.closed = True
            if extend:
                extend.cancel()
            call.cancel()
            if read and not read.done():
                read.cancel()
            asyncio.ensure_future(s.channel.close())
            if self.stream is s:
                self.stream = None
            self.commit()
        if end is None:
            self.count_mute(s, None)
            return 0.0, not (s.closed and s.epoch != self.epoch)
        least = end.reconnect_after.ToTimedelta().total_seconds()
        log("end", end.code, least)
        if end.code in (frame_pb2.END_CODE_SESSION_REVOKED, frame_pb2.END_CODE_REPLACED):
            self.stop("end of stream")
        if end.code == frame_pb2.END_CODE_TOKEN_EXPIRED and used == self.bearer:
            self.authorized.clear()
            self.want_token()
        return least, end.code not in (frame_pb2.END_CODE_DRAIN, frame_pb2.END_CODE_TOKEN_EXPIRED)

    def count_mute(self, s, failed):
        """A stream that ended by itself, late and without a hello, counts as mute."""
        answered = failed and failed.code in ("UNAUTHENTICATED", "ABORTED", "INVALID_ARGUMENT")
        if s.id is None and not s.closed and not answered and elapsed() - s.opened >= 5:
            self.mute += 1
            log("mute", self.mute)

    def take_response(self, s, r, backoff):
        """Applies a batch of frames; returns the end frame, if it came."""
        for f in r.frames:  # hello first: it says to which generation the commit belongs
            if f.WhichOneof("body") == "hello":
                s.id, s.generation, self.mute = f.hello.stream_id, f.hello.generation, 0
                self.set_expiry(s, f.hello)
                if r.commit == 0:
                    self.older_server(s.generation)
                elif not self.take_place(s.said, (s.generation, r.commit)):
                    s.closed = True
                if f.hello.full:
                    s.listed = set()
        if r.commit and not s.closed:
            if self.place is None or self.place[0] != s.generation:
                s.closed = True
            else:
                self.place = max(self.place, (s.generation, r.commit), key=lambda p: p[1])
        if s.closed or not r.frames:
            return None
        if r.first_position != s.next:
            log("lost frames", r.first_position, s.next)
            s.closed = True
            return None
        s.next += len(r.frames)
        for f in r.frames:
            body = f.WhichOneof("body")
            if body == "end":
                if f.end.token:
                    self.token = f.end.token
                return f.end
            if body == "heartbeat":
                if f.heartbeat.token:
                    self.token = f.heartbeat.token
                if f.heartbeat.token and not s.complete.is_set():
                    if s.listed is not None:
                        self.keep_only(s.listed)
                    log("complete")
                    s.complete.set()
                    backoff.tries = 0
                    self.kick()
            elif body == "reset" and not f.chat_id:
                self.forget(keep_place=True)
                return None
            elif body != "hello" and f.chat_id:
                self.take_frame(s, f, body)
        return None

    def keep_only(self, listed):
        """A full list replaces the client's."""
        for cid in [c for c in self.chats if c not in listed]:
            self.drop(cid, self.chats[cid].seen)

    def take_frame(self, s, f, body):
        """Applies one frame of a chat."""
        cid, version = f.chat_id, f.version
        c = self.chats.get(cid)
        m = f.membership_change if body == "membership_change" else None
        mine = m is not None and m.user_id == self.user
        if m is not None and version == 0 or mine and m.kind == KIND.KIND_REMOVED:
            if version == 0 or not c or version > c.base:
                self.drop(cid, version or (c.seen if c else 0))
                if s.listed is not None:
                    s.listed.discard(cid)
            return
        overview = f.head.overview if body == "head" and f.head.HasField("overview") else None
        if s.listed is not None and (overview or mine):
            s.listed.add(cid)
        if max(version, f.head.version if body == "head" else 0) <= self.left.get(cid, -1) or (
                body == "member_state" and not c):
            return
        c = self.make(cid)
        if overview:
            self.take_overview(overview)
        elif body == "head":
            self.take_head(c, chat_pb2.ChatHead(version=f.head.version, sequence=f.head.sequence))
        elif body == "member_state":
            self.take_state(c, f.member_state)
        elif body == "reset":
            self.unload(c)
            c.seen = f.reset.version
        elif mine and m.kind == KIND.KIND_ADDED and (version > c.base or c.own is not None and c.own < version):
            self.start_over(c, version)
        else:
            applies = c.own is not None and f.after_version <= c.own < version
            if body == "message":
                if applies:
                    self.put_message(c, f.message)
                else:
                    self.note_message(c, f.message)
            elif body == "chat":
                self.take_chat(c, f.chat)
            elif m is not None:
                if applies:
                    self.take_membership(c, m)
                if f.after_version < version - 1:  # merged: it may hide a change of the chat
                    c.need_chat = True
                    if applies and m.kind == KIND.KIND_ROLE_CHANGED:
                        c.members_need = version
            if applies:
                c.own = version
            c.seen = max(c.seen, version)
        self.touch(c)

    def set_expiry(self, s, answer):
        """Notes when the stream ends; half of a short time is left for the extension."""
        if answer.HasField("expires_in"):
            left = answer.expires_in.ToTimedelta().total_seconds()
        elif answer.HasField("expires_at"):
            left = answer.expires_at.ToDatetime().timestamp() - self.wall()
        else:
            return
        s.expires = elapsed() + max(1.0, left - 60, left / 2 if left < 120 else 0)

    async def extend(self, s):
        """Extends a stream before it ends, each time with a new token."""
        while not s.closed:
            if s.expires is None or elapsed() < s.expires:
                await asyncio.sleep(0.5)
                continue
            came = self.bearer_came
            self.want_token()
            await came.wait()
            try:
                answer = await self.call("delivery", "Extend", delivery_service_pb2.ExtendRequest(stream_id=s.id))
                self.set_expiry(s, answer)
            except Failed as e:
                s.expires = elapsed() + (30 if not e.again else 1)

    # ---- sync and polls

    async def sync(self):
        """Takes all pages of Sync; says whether something was new."""
        token, page, news, listed, again = self.token, "", False, set(), False
        while True:
            request = delivery_service_pb2.SyncRequest(token=token or "", page_token=page)
            try:
                answer = await self.call("delivery", "Sync", request)
            except Failed as e:
                if e.code != "INVALID_ARGUMENT" or not (token or page and not again):
                    raise
                if not page or again:  # the token itself is refused, or no page with it is taken
                    token = self.token = None
                page, listed, again = "", set(), True
                continue
            for o in answer.overviews:
                news = self.take_overview(o) or news
                listed.add(o.chat.chat_id)
            for left in answer.left_chats:
                c = self.chats.get(left.chat_id)
                if c and left.version > c.seen:
                    self.drop(left.chat_id, left.version)
                    news = True
            page = answer.next_page_token
            if not page:
                if answer.full:
                    self.keep_only(listed)
                self.token = answer.token or self.token
                self.commit()
                return news

    async def poll(self):
        """Polls behind a proxy that holds streams back, until a stream is complete."""
        self.polling, wait, backoff, first = True, 2.0, Backoff(), True
        next_stream, attempt, stream_backoff = elapsed() + 300, None, Backoff()
        log("polling")
        try:
            while not self.stopped and not (self.stream and self.stream.complete.is_set()):
                self.poll_now.clear()
                try:
                    news = await self.sync()
                    first = False
                    wait = 2.0 if news else min(15.0, wait * 1.5)
                    pause = wait * random.uniform(0.75, 1.25)
                    self.kick()
                except Failed as e:
                    if first and not e.again:
                        self.mute = 0
                        return
                    pause = 0.05 if e.again else max(e.least, backoff.next())
                else:
                    backoff = Backoff()
                until = elapsed() + pause
                while elapsed() < until and not self.poll_now.is_set():
                    if self.stream and self.stream.complete.is_set():
                        break
                    if elapsed() >= next_stream and (attempt is None or attempt.done()):
                        next_stream = elapsed() + 300
                        attempt = asyncio.ensure_future(self.subscribe(stream_backoff))
                        attempt.add_done_callback(lambda t: t.cancelled() or t.exception())
                    try:
                        await asyncio.wait_for(self.poll_now.wait(), min(0.5, max(0.01, until - elapsed())))
                    except asyncio.TimeoutError:
                        pass
            self.polling, self.mute = False, 0
            if attempt and not attempt.done():
                await asyncio.wait({attempt})
        finally:
            self.polling = False

    # ---- reading chats

    def job(self, key, function, *args):
        """Runs a task, unless one of this key runs."""
        if self.stopped or key in self.jobs:
            return
        task = self.jobs[key] = asyncio.ensure_future(function(*args))
        def done(t):
            self.jobs.pop(key, None)
            if not t.cancelled() and t.exception():
                log("job failed", key, repr(t.exception()))
                raise t.exception()
        task.add_done_callback(done)

    def work_on(self, c):
        """Reads what a chat lacks, unless that is under way."""
        self.job(("chat", c.id), self.work, c)

    def need(self, c):
        """What to read of a chat next; None if nothing."""
        if self.chats.get(c.id) is not c or self.stopped:
            return None
        if c.chat is None or c.state is None or c.need_chat:
            return "chat"
        if c.open and c.own is None:
            return "messages"
        if c.own is None:
            return None
        if c.own < c.seen:
            s = self.stream
            if s and s.id and (elapsed() < c.gap_after or
                               c.id in s.known and not s.complete.is_set() and elapsed() < s.opened + 5):
                return "wait"
            return "changes"
        if c.members_at < c.members_need:
            return "members"
        if c.older and not c.first:
            return "older"
        return None

    async def work(self, c):
        """Reads what a chat lacks."""
        backoff = Backoff()
        while True:
            need = self.need(c)
            if need is None:
                return
            if need == "wait":
                await asyncio.sleep(0.1)
                continue
            seen = c.seen
            try:
                async with self.reads:
                    progress = await getattr(self, "read_" + need)(c)
                self.commit()
                if progress:
                    backoff = Backoff()
                else:
                    await self.pause(backoff.next())
            except Failed as e:
                if e.reason == "NOT_A_MEMBER":
                    self.not_a_member(c, seen)
                elif e.again:
                    await asyncio.sleep(0.05)
                else:
                    await self.pause(max(e.least, backoff.next()), e.least)

    def not_a_member(self, c, seen):
        """An answer says that the user is no member: so it is, unless something newer came."""
        if c and self.chats.get(c.id) is c and c.seen == seen:
            self.drop(c.id, seen)
        self.commit()

    def gone(self, c, loads):
        """Whether a chat was dropped or begun anew since a request."""
        return self.chats.get(c.id) is not c or c.loads != loads

    async def read_chat(self, c):
        """Reads the overview of a chat."""
        c.need_chat, loads = False, c.loads
        self.touch(c)
        try:
            answer = await self.call("chat_service", "GetChat", chat_service_pb2.GetChatRequest(chat_id=c.id))
        except Failed:
            c.need_chat = True
            raise
        if self.gone(c, loads) or answer.overview.head.version < c.seen and c.fresh:
            c.need_chat = True
            return False
        self.take_overview(answer.overview)
        return True

    async def read_messages(self, c):
        """Loads the newest page of messages."""
        loads = c.loads
        answer = await self.call("message_service", "ListMessages", message_service_pb2.ListMessagesRequest(
            chat_id=c.id))
        if self.gone(c, loads) or c.own is not None:
            return True
        self.take_page(c, answer.messages, answer.head, answer.head.version)
        c.first = not answer.has_more
        return True

    def take_page(self, c, messages, head, version):
        """Begins a chat's messages with this page, at this version."""
        self.unload(c)
        for m in messages:
            self.put_message(c, m)
            c.seen = max(c.seen, m.version)
        c.own, c.members_need = version, version
        self.take_head(c, head)

    async def read_members(self, c):
        """Loads the list of members, page by page."""
        loads, want, page, at, listed = c.loads, c.members_need, "", None, {}
        while True:
            try:
                answer = await self.call("chat_service", "ListMembers", chat_service_pb2.ListMembersRequest(
                    chat_id=c.id, page_token=page))
            except Failed as e:
                if page and e.code == "INVALID_ARGUMENT":
                    page, at, listed = "", None, {}
                    continue
                raise
            if self.gone(c, loads):
                return True
            at = answer.head.version if at is None else at
            listed.update({m.user_id: m for m in answer.members})
            page = answer.next_page_token
            if not page:
                break
        if at < want:
            return False
        for m in listed.values():
            self.put_member(c, m.user_id, m.role, m.version)
        for user, (role, version) in list(c.members.items()):
            if user not in listed and role and version <= at:
                self.put_member(c, user, 0, version)
        c.members_at = at
        c.seen = max(c.seen, answer.head.version)
        self.touch(c)
        return True

    async def read_older(self, c):
        """Loads the page before the messages at hand."""
        loads, run = c.loads, c.run()
        c.older -= 1
        if not run or run[0].sequence <= 1:
            return True
        before = run[0].sequence
        try:
            answer = await self.call("message_service", "ListMessages", message_service_pb2.ListMessagesRequest(
                chat_id=c.id, before_sequence=before))
        except Failed:
            c.older += 1
            raise
        if not self.gone(c, loads):
            for m in answer.messages:
                self.put_message(c, m)
                c.seen = max(c.seen, m.version)
            c.first = not answer.has_more
        return True

    async def read_changes(self, c):
        """Asks for what changed after the version at hand."""
        loads, after = c.loads, c.own
        r = await self.call("message_service", "ListChanges", message_service_pb2.ListChangesRequest(
            chat_id=c.id, after_version=after))
        if self.gone(c, loads):
            return True
        if r.reset:
            if c.own == after or r.version > c.own:
                log("reset by changes", c.id, r.version)
                self.take_page(c, r.messages, r.head, r.version)
                c.seen, c.need_chat = max(r.version, r.head.version), True
            return True
        again = False
        for change in r.changes:
            body = change.WhichOneof("body")
            if body == "message":
                self.put_message(c, change.message)
            elif body == "chat":
                self.take_chat(c, change.chat)
            elif body == "membership_change":
                m = change.membership_change
                if m.user_id == self.user and m.kind == KIND.KIND_REMOVED:
                    if m.version > c.base:
                        self.drop(c.id, m.version)
                        return True
                again = again or m.user_id == self.user
                self.take_membership(c, m)
                c.need_chat = True
                if m.kind == KIND.KIND_ROLE_CHANGED:
                    c.members_need = max(c.members_need, r.version)
        c.own = max(c.own, r.version)
        self.take_head(c, r.head)
        if again:
            self.start_over(c, c.seen)
        return c.own > after

    # ---- the outbox and the marks

    def send(self, chat, text):
        """Stores a message, and sends it as soon as that can be."""
        key = str(uuid.uuid4())
        number = self.db.execute("INSERT INTO outbox(id, chat, text, wall) VALUES(?,?,?,?)",
                                 (key, chat, text, self.wall())).lastrowid
        self.outbox.append(Item(number, key, chat, text, None, 0.0))
        self.commit()
        self.on_sent(text)
        self.pump_outbox()

    def pump_outbox(self):
        """Begins to send where nothing is being sent."""
        for chat in {i.chat for i in self.outbox if i.answered is None}:
            self.job(("send", chat), self.send_all, chat)

    async def send_all(self, chat):
        """Sends the messages of a chat, one at a time, oldest first."""
        backoff = Backoff()
        while not self.stopped:
            item = next((i for i in self.outbox if i.chat == chat and i.answered is None), None)
            if not item:
                return
            if elapsed() - item.born > WEEK:
                self.give_up(item, "EXPIRED")
                continue
            c = self.chats.get(chat)
            seen = c.seen if c else 0
            try:
                answer = await self.call("message_service", "SendMessage", message_service_pb2.SendMessageRequest(
                    chat_id=chat, client_message_id=item.key, content=item.text))
            except Failed as e:
                if e.again:
                    await asyncio.sleep(0.05)
                elif e.code in REFUSED:
                    self.give_up(item, e.reason or e.code)
                    if e.reason == "NOT_A_MEMBER":
                        self.not_a_member(c, seen)
                else:
                    await self.pause(max(e.least, backoff.next()), e.least)
                continue
            backoff = Backoff()
            self.take_sent(item, answer)
            self.commit()
            self.poll_now.set()

    def give_up(self, item, reason):
        """Reports a message that the server will not take."""
        self.forget_item(item)
        self.refused.append({"text": item.text, "reason": reason})
        self.commit()

    def take_sent(self, item, answer):
        """The server stored a message: a change from the version before to this one."""
        c, version = self.chats.get(item.chat), answer.version
        m = message_pb2.Message(message_id=answer.message_id, chat_id=item.chat, sequence=answer.sequence,
                                sender_id=self.user, content=item.text, content_type=message_pb2.CONTENT_TYPE_TEXT,
                                client_message_id=item.key, created_at=answer.created_at, version=version)
        if not c or version <= self.left.get(item.chat, 0):
            self.forget_item(item)
        elif c.own is not None and c.own < version - 1:
            item.answered = version  # it stays in sight until the gap before it is filled
            self.db.execute("UPDATE outbox SET answered=? WHERE number=?", (version, item.number))
            c.gap_after = elapsed() + 1
        elif c.own is not None and c.own == version - 1:
            self.put_message(c, m)
            c.own = version
        else:
            self.forget_item(item)
            self.note_message(c, m)
        if c:
            c.seen = max(c.seen, version)
            if item.answered is not None and answer.sequence > c.read() and answer.sequence not in c.mine:
                c.mine.append(answer.sequence)
                c.head.sequence = max(c.head.sequence, answer.sequence)
            self.touch(c)

    def mark_read(self, chat, sequence):
        """The user has read a chat up to here."""
        c = self.chats.get(chat)
        if not c:
            return
        sequence = min(sequence, c.top())
        if sequence > c.read():
            c.mark = sequence
            self.touch(c)
            self.commit()
            self.marks_due.set()

    async def send_marks(self):
        """Acks what has come, and sends read marks with it."""
        backoff, singly = Backoff(), False
        while not self.stopped:
            if not any(c.mark for c in self.chats.values()):
                self.marks_due.clear()
            try:
                await asyncio.wait_for(self.marks_due.wait(), 1)
            except asyncio.TimeoutError:
                pass
            s = self.stream
            ready = s is not None and s.id is not None and not s.closed
            marks = [(c, c.mark, c.seen) for c in self.chats.values() if c.mark and c.chat][:64]
            if not marks and not (ready and s.next - 1 > s.acked):
                continue
            try:
                if ready and not singly:
                    position = s.next - 1
                    answer = await self.call("delivery", "Ack", delivery_service_pb2.AckRequest(
                        stream_id=s.id, position=position, read_marks=[
                            delivery_service_pb2.ReadMark(chat_id=c.id, sequence=m) for c, m, _ in marks]))
                    s.acked = position
                    if len(answer.read_outcomes) != len(marks):
                        singly = True
                        continue
                    for (c, mark, seen), outcome in zip(marks, answer.read_outcomes):
                        self.marked(c, mark, seen, outcome.state if not outcome.reason else None, outcome.reason)
                else:
                    singly = False
                    for c, mark, seen in marks:
                        try:
                            answer = await self.call("message_service", "MarkRead", message_service_pb2.MarkReadRequest(
                                chat_id=c.id, sequence=mark))
                            self.marked(c, mark, seen, answer.state, "")
                        except Failed as e:
                            if e.again or e.code not in REFUSED:
                                raise
                            self.marked(c, mark, seen, None, e.reason)
                self.commit()
                backoff = Backoff()
                await asyncio.sleep(0.1)
            except Failed as e:
                singly = bool(marks) and e.code in REFUSED
                await self.pause(0.1 if e.again or singly else max(e.least, backoff.next()), e.least)

    def marked(self, c, mark, seen, state, reason):
        """A read mark was recorded, or refused for this reason."""
        if self.chats.get(c.id) is not c:
            return
        if c.mark == mark:
            c.mark = 0
        if state is not None:
            self.take_state(c, state)
        elif reason == "NOT_A_MEMBER":
            self.not_a_member(c, seen)
        self.touch(c)
