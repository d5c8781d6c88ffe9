package relay

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/event/eventtest"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// K-034, K-041, K-043, K-057: the relay puts each kind of event where the contract says,
// under the chat's id, and nothing under the empty one.
func TestPartitionVectors(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	at := timestamppb.New(time.Unix(1, 0))
	for _, v := range eventtest.Vectors() {
		md := func(typ string) *eventv1.EventMetadata {
			return event.Metadata{Type: typ, ID: "evt_1", ChatID: v.Key, At: at.AsTime(),
				Origin: event.Origin{Generation: "g", Producer: "p"}, Version: 1}.Proto()
		}
		events := []event.Event{
			&eventv1.ChatCreated{Metadata: md(event.TypeChatCreated), ChatId: v.Key, CreatedAt: at},
			&eventv1.ChatUpdated{Metadata: md(event.TypeChatUpdated), ChatId: v.Key, UpdatedAt: at},
			&eventv1.MembershipChanged{Metadata: md(event.TypeMembershipChanged), ChatId: v.Key, ChangedAt: at},
			&eventv1.MessagePersisted{Metadata: md(event.TypeMessagePersisted), ChatId: v.Key, CreatedAt: at},
		}
		p, err := re.planOf(store.Key{}, v.Key, 1, events, nil)
		if v.Key == "" {
			if err == nil {
				t.Error("events without a chat id were accepted, expected an error")
			}
			continue
		}
		if err != nil || len(p.records) != len(event.Specs()) {
			t.Fatalf("%.20q: %d records, %v", v.Key, len(p.records), err)
		}
		for i, rec := range p.records {
			want, found := v.Partitions[int(kafka.Partitions(rec.Topic))]
			if !found || rec.Topic != event.SpecOf(events[i]).Topic || int(rec.Partition) != want || string(rec.Key) != v.Key {
				t.Errorf("%.20q: %s is in %s/%d under %.20q, expected partition %d", v.Key, event.TypeOf(events[i]), rec.Topic,
					rec.Partition, rec.Key, want)
			}
		}
	}
}
