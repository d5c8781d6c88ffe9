package eventquery_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/eventquery"
)

const benchEvents = 20_000 // of one chat

// longChat is an embedded store with a chat of many messages.
func longChat(b *testing.B) (st store.Store, id string) {
	b.Helper()
	st, id = embeddedtest.NewDisk(nil).Open(b, time.Now), "chat_01ARZ3NDEKTSV4RRFFQ69G5FAA"
	var writes []store.Write
	for v := int64(1); v <= benchEvents; v++ {
		md := event.Metadata{ID: fmt.Sprintf("evt_%026d", v), ChatID: id, At: start.Add(time.Duration(v) * time.Second),
			Origin: event.Origin{Generation: "g", Producer: "p"},
			Cause:  event.Cause{Actor: "alice"}.Complete("evt_1"), Version: v,
			MembershipVersion: 1}
		var e event.Event
		if v == 1 {
			md.Type = event.TypeChatCreated
			e = &eventv1.ChatCreated{Metadata: md.Proto(), ChatId: id, CreatedBy: "alice", Name: "Tea"}
		} else {
			md.Type = event.TypeMessagePersisted
			e = &eventv1.MessagePersisted{Metadata: md.Proto(), ChatId: id, MessageId: fmt.Sprintf("msg_%026d", v),
				Sequence: v - 1, SenderId: "alice", Content: "How are you today? I am fine.",
				CreatedAt: timestamppb.New(md.At)}
		}
		payload, err := event.Marshal(e)
		testkit.Must(b, err)
		row := table.Event{ChatID: id, Version: v, EventID: md.ID, Type: md.Type, Payload: payload}
		writes = append(writes, store.Write{Op: store.OpPut, Key: table.EventKey(id, v), Item: row.Item()})
		if len(writes) == store.MaxBatchWrite || v == benchEvents {
			testkit.Must(b, st.BatchWrite(b.Context(), writes))
			writes = nil
		}
	}
	return st, id
}

// An event that is read by a scan, of which none matches.
func BenchmarkScan(b *testing.B) {
	st, _ := longChat(b)
	for name, filter := range map[string]eventquery.Filter{"time": {Until: start},
		"type": {Types: []string{event.TypeChatUpdated}}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; n < b.N; {
				page, err := eventquery.List(b.Context(), st, filter,
					eventquery.Options{Limit: 100, MaxRead: max(1, min(b.N-n, benchEvents)), MaxBytes: 1 << 20})
				testkit.Must(b, err)
				if len(page.Events) > 0 || page.Read == 0 {
					b.Fatalf("%d events of %d", len(page.Events), page.Read)
				}
				n += page.Read
			}
		})
	}
}

// An event that a fold applies.
func BenchmarkFold(b *testing.B) {
	st, id := longChat(b)
	b.ReportAllocs()
	for n := 0; n < b.N; {
		version := max(1, min(b.N-n, benchEvents))
		_, problem, err := eventquery.Fold(b.Context(), st, id, int64(version), func(int64) error { return nil })
		testkit.Must(b, err)
		testkit.Must(b, problem)
		n += version
	}
}
