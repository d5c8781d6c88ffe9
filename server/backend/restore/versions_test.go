package restore

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// After a migration a partition of the new topic lost everything: what had come to the old
// topic is not published again, all else is.
func TestAfterMigration(t *testing.T) {
	s := storetest.NewMemory(time.Now)
	const chat = "chat_abc123"
	began := time.Unix(1_700_000_000, 0)
	var rows []store.Write
	for v := int64(1); v <= 4; v++ {
		id := []string{"", "old", "old and late", "new", "newest"}[v]
		at := began.Add(time.Duration(v) * time.Minute)
		e := &eventv1.MessagePersisted{
			Metadata: event.Metadata{Type: event.TypeMessagePersisted, ID: id, ChatID: chat, At: at,
				Origin: event.Origin{Generation: "g", Producer: "p"}, Version: v}.Proto(),
			ChatId: chat, CreatedAt: timestamppb.New(at),
		}
		payload, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, store.Write{Op: store.OpPut, Key: table.EventKey(chat, v),
			Item: table.Event{ChatID: chat, Version: v, EventID: id, Type: event.TypeMessagePersisted, Payload: payload}.Item()})
	}
	rows = append(rows, store.Write{Op: store.OpPut, Key: table.HeadKey(chat),
		Item: table.Head{Version: 4, Sequence: 4}.Item()})
	if err := s.BatchWrite(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	from := began.Add(3 * time.Minute).UnixMilli()
	topics := versions.State{Topics: map[string][]versions.Version{kafka.MessagesPersisted: {
		{Number: 1, Partitions: 64, Status: versions.Past, Until: from},
		{Number: 2, Partitions: 128, Status: versions.Current, From: from},
	}}}
	cfg := Config{
		Store: s, Clock: time.Now, Topics: topics,
		Lost: []Lost{{Partition: kafka.Partition{Topic: "messages.persisted.v2", ID: 86}, Since: from}},
		Read: func(_ context.Context, p kafka.Partition, each func(*kafka.Record)) error {
			if p == (kafka.Partition{Topic: "messages.persisted", ID: 22}) {
				for _, id := range []string{"old", "old and late"} {
					each(&kafka.Record{Headers: []kafka.Header{{Key: kafka.HeaderEventID, Value: []byte(id)}}})
				}
			}
			return nil
		},
	}
	report, err := Run(t.Context(), cfg)
	if err != nil || report.Events != 2 {
		t.Fatalf("%d events are published again, not 2: %v", report.Events, err)
	}
	page, err := s.Query(t.Context(),
		store.Query{Table: store.Outbox, PK: table.ShardKey(event.Shard(chat)), Consistency: store.Strong})
	if err != nil || len(page.Rows) != 1 {
		t.Fatal(page.Rows, err)
	}
	if o, err := table.OutboxFrom(page.Rows[0]); err != nil || o.FirstVersion != 3 || o.Count != 2 {
		t.Errorf("%+v %v", o, err)
	}
}
