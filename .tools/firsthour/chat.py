"""Chat is a chat in a terminal: it sends the lines of standard input and prints the messages of all members, each once
and in order. It stands on generated stubs alone; what the protocol asks for is said at the Frame of frame.proto.

    chat.py HOST:PORT TOKEN CHAT
"""

import os
import random
import sys
import threading
import time
import uuid

import grpc
from parley.delivery.v1 import delivery_service_pb2 as delivery_pb
from parley.delivery.v1 import frame_pb2 as frame_pb
from parley.delivery.v1.delivery_service_pb2_grpc import DeliveryServiceStub
from parley.message.v1 import message_service_pb2 as message_pb
from parley.message.v1.message_service_pb2_grpc import MessageServiceStub

ADDRESS, TOKEN, CHAT = sys.argv[1:4]
# gRPC waits up to two minutes before it reconnects, and does not notice by itself that a peer is gone.
CHANNEL = grpc.insecure_channel(ADDRESS, options=[
    ("grpc.initial_reconnect_backoff_ms", 250), ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.keepalive_time_ms", 20000), ("grpc.keepalive_timeout_ms", 10000),
])
messages, delivery = MessageServiceStub(CHANNEL), DeliveryServiceStub(CHANNEL)
# Errors that repetition does not fix.
FINAL = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED,
         grpc.StatusCode.FAILED_PRECONDITION)


def fail(*what):
    print(*what, file=sys.stderr, flush=True)
    os._exit(1)


class Chat:
    token = ""  # of the last synchronisation
    generation = ""  # of the server's store
    commit = 0  # the newest of that generation that was shown
    place = ""  # both, as calls say them
    own = 0  # version of the chat that is shown
    newest = 0  # newest version that was seen
    last = 0  # sequence of the last message that was shown
    pause = 0.25

    def show(self, m):
        if m.sequence <= self.last:
            print("shown before:", m.sequence, file=sys.stderr, flush=True)
            return
        self.last = m.sequence
        print(m.sequence, m.sender_id, m.content, flush=True)

    def apply(self, f):
        body = f.WhichOneof("body")
        if body == "hello" and f.hello.generation != self.generation:
            self.generation, self.commit = f.hello.generation, 0  # the server was started again
        elif body == "heartbeat":  # all that was missed has come
            self.token, self.pause = f.heartbeat.token, 0.25
        elif body == "reset" and not f.chat_id:
            self.token, self.own, self.newest = "", 0, 0
        elif body == "end":
            if f.end.code in (frame_pb.END_CODE_SESSION_REVOKED, frame_pb.END_CODE_REPLACED):
                fail("ended for good:", frame_pb.EndCode.Name(f.end.code))
            self.pause = f.end.reconnect_after.ToTimedelta().total_seconds()
        elif f.chat_id == CHAT:
            self.newest = max(self.newest, f.version, f.head.version, f.reset.version)
            if f.after_version <= self.own < f.version:
                self.own = f.version
                if body == "message":
                    self.show(f.message)

    def reach(self, commit):
        """Keeps how far the store's history was shown."""
        self.commit = max(self.commit, commit)
        self.place = f"{self.generation}-{self.commit}"

    def metadata(self):
        history = (("parley-history", self.place),) if self.place else ()
        return (("authorization", "Bearer " + TOKEN), *history)

    def catch_up(self):
        while self.own < self.newest:
            request = message_pb.ListChangesRequest(chat_id=CHAT, after_version=self.own)
            page, call = messages.ListChanges.with_call(request, metadata=self.metadata(), timeout=10)
            generation, commit = dict(call.initial_metadata())["parley-history"].split("-")
            if generation != self.generation:
                return  # the server was started again: the stream has ended
            self.reach(int(commit))
            for change in page.changes:
                if change.WhichOneof("body") == "message":
                    self.show(change.message)
            for m in page.messages:  # too far behind: the newest page instead
                self.show(m)
            self.own = page.version

    def follow(self):
        known = [delivery_pb.KnownChat(chat_id=CHAT, version=self.own)]
        stream = delivery.Subscribe(delivery_pb.SubscribeRequest(token=self.token, known_chats=known), metadata=self.metadata())
        stream_id = ""
        try:
            while True:
                watchdog = threading.Timer(50, stream.cancel)  # something comes every 15 s
                watchdog.start()
                try:
                    batch = next(stream)
                finally:
                    watchdog.cancel()
                for f in batch.frames:
                    stream_id = f.hello.stream_id or stream_id
                    self.apply(f)
                self.reach(batch.commit)
                self.catch_up()
                position = batch.first_position + len(batch.frames) - 1
                # Nobody waits for it: if one is lost, the next one covers it.
                delivery.Ack.future(delivery_pb.AckRequest(stream_id=stream_id, position=position), metadata=self.metadata(), timeout=10)
        finally:
            stream.cancel()

    def keep_following(self):
        while True:
            try:
                self.follow()
            except grpc.RpcError as e:
                print("stream ended:", e.code(), e.details(), file=sys.stderr, flush=True)
                if e.code() in FINAL:
                    os._exit(1)
                if e.code() == grpc.StatusCode.ABORTED:  # the server's data are an older copy: nothing shown counts
                    self.token, self.place, self.own, self.newest, self.last = "", "", 0, 0, 0
            except StopIteration:
                print("stream ended", file=sys.stderr, flush=True)
            time.sleep(self.pause / 2 + random.random() * self.pause)
            self.pause = min(2 * self.pause, 5)


def send(content):
    """Retries under the same id until the message is stored or refused."""
    request = message_pb.SendMessageRequest(chat_id=CHAT, content=content, client_message_id=str(uuid.uuid4()))
    while True:
        try:
            messages.SendMessage(request, metadata=chat.metadata(), timeout=10)
            return
        except grpc.RpcError as e:
            if e.code() in FINAL:
                fail("refused:", e.details())
            time.sleep(random.random())


chat = Chat()
threading.Thread(target=chat.keep_following, daemon=True).start()
for line in sys.stdin:
    send(line.rstrip("\n"))
os._exit(0)
