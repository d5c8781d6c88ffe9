//go:build !windows

package app_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// TestTwoServers: what is done at one server is seen at the other, acknowledgements find
// their stream, and a user's own state follows to all devices.
func TestTwoServers(t *testing.T) {
	in := newInstallation(t)
	for _, m := range in.servers {
		if text := m.log.String(); strings.Contains(text, "eyJ") {
			t.Errorf("a token in what is logged: %s", text)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	bob, alice, elsewhere := in.user("bob", 0), in.user("alice", 1), in.user("bob", 1)
	created, err := call(ctx, alice.chats.CreateChat,
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
	if err != nil {
		t.Fatal(err)
	}
	chatID := created.GetOverview().GetChat().GetChatId()
	stream, err := bob.delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var hello *deliveryv1.Hello
	var last int64
	until := func(what string, ok func(*deliveryv1.Frame) bool) *deliveryv1.Frame {
		t.Helper()
		for stream.Receive() {
			msg := stream.Msg()
			var found *deliveryv1.Frame
			for i, f := range msg.GetFrames() {
				last = msg.GetFirstPosition() + int64(i)
				if h := f.GetHello(); h != nil {
					hello = h
				}
				if found == nil && ok(f) {
					found = f
				}
			}
			if found != nil {
				return found
			}
		}
		t.Fatalf("the stream ended before %s: %v", what, stream.Err())
		return nil
	}
	until("it was open", func(f *deliveryv1.Frame) bool { return f.GetHeartbeat().GetToken() != "" })
	for i := range 20 {
		text := fmt.Sprint("hello ", i)
		if _, err := call(ctx, alice.messages.SendMessage,
			&messagev1.SendMessageRequest{ChatId: chatID, Content: text, ClientMessageId: uuid.NewString()}); err != nil {
			t.Fatal(err)
		}
		until(text, func(f *deliveryv1.Frame) bool { return f.GetMessage().GetContent() == text })
	}
	// The same over the other server.
	if _, err := elsewhere.delivery.Ack(ctx,
		&deliveryv1.AckRequest{StreamId: hello.GetStreamId(), Position: last}); err != nil {
		t.Fatalf("ack at another server: %v", err)
	}
	_, err = elsewhere.delivery.Ack(ctx, &deliveryv1.AckRequest{StreamId: hello.GetStreamId(), Position: last + 1000})
	if connect.CodeOf(err) != connect.CodeOutOfRange {
		t.Errorf("ack of what was not sent: %v", err)
	}
	_, err = alice.delivery.Ack(ctx, &deliveryv1.AckRequest{StreamId: hello.GetStreamId(), Position: last})
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("ack of another user's stream: %v", err)
	}
	if _, err := elsewhere.delivery.Extend(ctx, &deliveryv1.ExtendRequest{StreamId: hello.GetStreamId()}); connect.CodeOf(
		err) != connect.CodePermissionDenied {
		t.Errorf("extended with the token of another session: %v", err)
	}
	if _, err := bob.delivery.Extend(ctx, &deliveryv1.ExtendRequest{StreamId: hello.GetStreamId()}); err != nil {
		t.Errorf("extend: %v", err)
	}
	if _, err := elsewhere.messages.MarkRead(ctx, &messagev1.MarkReadRequest{ChatId: chatID, Sequence: 20}); err != nil {
		t.Fatal(err)
	}
	until("the receipt", func(f *deliveryv1.Frame) bool { return f.GetMemberState().GetReadSequence() == 20 })
}

// TestDistributed loads two servers and does to them, to two workers, three brokers and
// Redis what happens to machines, one fault after the other; see kinds. After each, all
// that was committed is on Kafka, read by fanout and shown within 30 s of the fault's end.
// At last every acknowledged message is there once, in its place, was shown once and in
// order, and is on Kafka. PARLEY_KILLS sets the number of faults, or the time for them.
func TestDistributed(t *testing.T) {
	in := newCuttable(t)
	ctx, progress := untilStuck(t, 6*time.Minute)
	x := &trouble{t: t, ctx: ctx, in: in, load: newLoad(ctx, t, in), probe: newLagProbe(ctx, in),
		topics: newTopicLoad(ctx, t, in)}
	kinds := x.kinds()
	done := 0
	for i := range testkit.Rounds(t, "PARLEY_KILLS", defaultFaults) {
		progress()
		f := kinds[i%len(kinds)]
		ok := t.Run(f.name, func(t *testing.T) { // so that -run can choose
			if why := in.engines.notRun(); f.engines && why != "" {
				t.Skip(why)
			}
			own := *x
			own.t = t
			own.suffer(f, i/len(kinds))
			done++
		})
		if !ok {
			t.FailNow()
		}
	}
	progress()
	x.load.more(50)
	x.load.check(x.probe)
	x.topics.check()
	t.Logf("%d faults, %d acknowledged messages, %s", done, x.load.acknowledged(), x.load.streams())
}

// BenchmarkAcrossServers is a message's way from a sender at one server to a reader at
// another, over DynamoDB Local, Redis and a link.
func BenchmarkAcrossServers(b *testing.B) {
	in := newInstallation(b)
	ctx := b.Context()
	bob, alice := in.user("bob", 0), in.user("alice", 1)
	created, err := call(ctx, alice.chats.CreateChat,
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
	if err != nil {
		b.Fatal(err)
	}
	chatID := created.GetOverview().GetChat().GetChatId()
	stream, err := bob.delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
	if err != nil {
		b.Fatal(err)
	}
	defer stream.Close()
	shown := make(chan string, 1024)
	go func() {
		defer close(shown)
		for stream.Receive() {
			for _, f := range stream.Msg().GetFrames() {
				if id := f.GetMessage().GetClientMessageId(); id != "" || f.GetHeartbeat().GetToken() != "" {
					shown <- id
				}
			}
		}
	}()
	<-shown // the stream is open
	for b.Loop() {
		id := uuid.NewString()
		if _, err := call(ctx, alice.messages.SendMessage,
			&messagev1.SendMessageRequest{ChatId: chatID, Content: "hello", ClientMessageId: id}); err != nil {
			b.Fatal(err)
		}
		for got := range shown {
			if got == id {
				break
			}
		}
	}
}
