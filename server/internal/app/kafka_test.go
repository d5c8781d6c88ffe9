package app_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
)

// checkLog reads a chat's messages from Kafka, committed records only, until all
// are there: in the chat's partition, framed, and each for the first time only
// after the one before it (ordering_preserved, K-072).
func checkLog(ctx context.Context, t *testing.T, addr, chatID string, stored []*messagev1.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := kafka.NewReader(addr, kafka.MessagesPersisted)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	seen := int64(0)
	for seen < int64(len(stored)) {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d messages came on Kafka", seen, len(stored))
		}
		fetches.EachRecord(func(r *kafka.Record) {
			if string(r.Key) != chatID {
				return
			}
			if want := event.Bucket(chatID) % 64; int(r.Partition) != want {
				t.Fatalf("partition %d, not %d", r.Partition, want)
			}
			// The Confluent wire format: a zero byte, four of the schema's id, one of the
			// message's index.
			var m eventv1.MessagePersisted
			if len(r.Value) < 6 || r.Value[0] != 0 || r.Value[5] != 0 || proto.Unmarshal(r.Value[6:], &m) != nil {
				t.Fatalf("value % x", r.Value)
			}
			switch n := m.GetSequence(); {
			case n == seen+1:
				seen = n
				if s := stored[n-1]; s.GetMessageId() != m.GetMessageId() || s.GetContent() != m.GetContent() {
					t.Fatalf("Kafka has %v, the store %v", &m, s)
				}
			case n > seen:
				t.Fatalf("sequence %d follows %d", n, seen)
			}
		})
	}
}

// A plain reader attached to a running server sees a message.
func TestMessageReachesKafka(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	u := newUser("alice", token(t, dir, "alice"), p.addr, newTransport(t, false))
	res, err := u.chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{
		Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := res.GetChat().GetChat().GetChatId()
	for _, text := range []string{"Hello, Bob", "Tea?"} {
		if _, err := u.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: text}); err != nil {
			t.Fatal(err)
		}
	}
	checkLog(t.Context(), t, p.kafka, id, history(t.Context(), t, u, id))
}
