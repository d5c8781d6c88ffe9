// Chat is a chat in a terminal: it sends the lines of standard input and prints the messages of all members, each once
// and in order. It stands on generated stubs alone; what the protocol asks for is said at the Frame of frame.proto.
//
//   java Chat HOST:PORT TOKEN CHAT
import dev.parley.delivery.v1.*;
import dev.parley.message.v1.*;
import io.grpc.*;
import io.grpc.stub.MetadataUtils;
import java.io.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;

public class Chat {
  // Errors that repetition does not fix.
  static final Set<Status.Code> FINAL = EnumSet.of(Status.Code.INVALID_ARGUMENT, Status.Code.PERMISSION_DENIED,
      Status.Code.UNAUTHENTICATED, Status.Code.FAILED_PRECONDITION);

  static final Metadata.Key<String> HISTORY = Metadata.Key.of("parley-history", Metadata.ASCII_STRING_MARSHALLER);

  final ManagedChannel channel;
  final MessageServiceGrpc.MessageServiceBlockingStub messages;
  final DeliveryServiceGrpc.DeliveryServiceBlockingStub delivery;
  final String chatId;
  String token = ""; // of the last synchronisation
  String generation = ""; // of the server's store
  long commit; // the newest of that generation that was shown
  volatile String place = ""; // both, as calls say them
  long own, newest, last; // version shown, newest version seen, sequence of the last message shown
  long pause = 250;

  Chat(String address, String bearer, String chatId) {
    this.chatId = chatId;
    channel = Grpc.newChannelBuilder(address, InsecureChannelCredentials.create())
        .intercept(headers(bearer))
        .keepAliveTime(20, TimeUnit.SECONDS) // otherwise a stream does not notice that its peer is gone
        .build();
    messages = MessageServiceGrpc.newBlockingStub(channel);
    delivery = DeliveryServiceGrpc.newBlockingStub(channel);
  }

  ClientInterceptor headers(String bearer) {
    return new ClientInterceptor() {
      @Override
      public <A, B> ClientCall<A, B> interceptCall(MethodDescriptor<A, B> method, CallOptions options, Channel next) {
        Metadata headers = new Metadata();
        headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + bearer);
        if (!place.isEmpty()) headers.put(HISTORY, place);
        return MetadataUtils.newAttachHeadersInterceptor(headers).interceptCall(method, options, next);
      }
    };
  }

  static void fail(String what) {
    System.err.println(what);
    Runtime.getRuntime().halt(1);
  }

  void show(Message m) {
    if (m.getSequence() <= last) System.err.println("shown before: " + m.getSequence());
    else System.out.println((last = m.getSequence()) + " " + m.getSenderId() + " " + m.getContent());
  }

  void apply(Frame f) {
    if (f.hasHello()) {
      if (!f.getHello().getGeneration().equals(generation)) commit = 0; // the server was started again
      generation = f.getHello().getGeneration();
    } else if (f.hasHeartbeat()) { // all that was missed has come
      token = f.getHeartbeat().getToken();
      pause = 250;
    } else if (f.hasReset() && f.getChatId().isEmpty()) {
      token = "";
      own = newest = 0;
    } else if (f.hasEnd()) {
      EndCode code = f.getEnd().getCode();
      if (code == EndCode.END_CODE_SESSION_REVOKED || code == EndCode.END_CODE_REPLACED) {
        fail("ended for good: " + code);
      }
      pause = Math.max(1, com.google.protobuf.util.Durations.toMillis(f.getEnd().getReconnectAfter()));
    } else if (f.getChatId().equals(chatId)) {
      newest = Math.max(Math.max(newest, f.getVersion()), Math.max(f.getHead().getVersion(), f.getReset().getVersion()));
      if (f.getAfterVersion() <= own && own < f.getVersion()) {
        own = f.getVersion();
        if (f.hasMessage()) show(f.getMessage());
      }
    }
  }

  // reach keeps how far the store's history was shown.
  void reach(long at) {
    commit = Math.max(commit, at);
    place = generation + "-" + commit;
  }

  void catchUp() {
    while (own < newest) {
      var said = new AtomicReference<Metadata>();
      var page = messages.withDeadlineAfter(10, TimeUnit.SECONDS)
          .withInterceptors(MetadataUtils.newCaptureMetadataInterceptor(said, new AtomicReference<>()))
          .listChanges(ListChangesRequest.newBuilder().setChatId(chatId).setAfterVersion(own).build());
      String[] at = said.get().get(HISTORY).split("-");
      if (!at[0].equals(generation)) return; // the server was started again: the stream has ended
      reach(Long.parseLong(at[1]));
      for (Change change : page.getChangesList()) if (change.hasMessage()) show(change.getMessage());
      for (Message m : page.getMessagesList()) show(m); // too far behind: the newest page instead
      own = page.getVersion();
    }
  }

  void follow() {
    var known = KnownChat.newBuilder().setChatId(chatId).setVersion(own);
    var stream = delivery.subscribe(SubscribeRequest.newBuilder().setToken(token).addKnownChats(known).build());
    var ack = AckRequest.newBuilder();
    while (stream.hasNext()) {
      SubscribeResponse batch = stream.next();
      for (Frame f : batch.getFramesList()) {
        if (f.hasHello()) ack.setStreamId(f.getHello().getStreamId());
        apply(f);
      }
      reach(batch.getCommit());
      catchUp();
      ack.setPosition(batch.getFirstPosition() + batch.getFramesCount() - 1);
      // Nobody waits for the answer: if one is lost, the next one covers it.
      DeliveryServiceGrpc.newFutureStub(channel).withDeadlineAfter(10, TimeUnit.SECONDS).ack(ack.build());
    }
  }

  void keepFollowing() {
    for (;; pause = Math.min(2 * pause, 5000)) {
      var stream = Context.current().withCancellation();
      try {
        stream.run(this::follow);
        System.err.println("stream ended");
      } catch (StatusRuntimeException e) {
        System.err.println("stream ended: " + e.getMessage());
        if (FINAL.contains(e.getStatus().getCode())) fail("refused");
        if (e.getStatus().getCode() == Status.Code.ABORTED) { // the server's data are an older copy: nothing shown counts
          token = place = "";
          own = newest = last = 0;
        }
      } finally {
        stream.cancel(null);
      }
      LockSupport.parkNanos((pause / 2 + ThreadLocalRandom.current().nextLong(pause)) * 1_000_000);
      channel.resetConnectBackoff(); // the channel's own pauses grow to minutes
    }
  }

  // send retries under the same id until the message is stored or refused.
  void send(String content) {
    var request = SendMessageRequest.newBuilder().setChatId(chatId).setContent(content)
        .setClientMessageId(UUID.randomUUID().toString()).build();
    for (;; LockSupport.parkNanos(ThreadLocalRandom.current().nextLong(1_000_000_000))) {
      try {
        messages.withDeadlineAfter(10, TimeUnit.SECONDS).sendMessage(request);
        return;
      } catch (StatusRuntimeException e) {
        if (FINAL.contains(e.getStatus().getCode())) fail("refused: " + e.getMessage());
      }
    }
  }

  public static void main(String[] args) throws IOException {
    Chat chat = new Chat(args[0], args[1], args[2]);
    new Thread(chat::keepFollowing).start();
    new BufferedReader(new InputStreamReader(System.in)).lines().forEach(chat::send);
    Runtime.getRuntime().halt(0);
  }
}
