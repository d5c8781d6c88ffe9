package restore

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/event/eventtest"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// An event is looked for in the partition where the contract puts it: what that partition
// lost is put back, and what another lost is not.
func TestPartitionVectors(t *testing.T) {
	partitions := int(kafka.Partitions(kafka.MessagesPersisted))
	at := time.Unix(1_700_000_000, 0)
	tried := 0
	for _, v := range eventtest.Vectors() {
		want, known := v.Partitions[partitions]
		if !known || len(v.Key) > 64 || table.HeadKey(v.Key).Validate() != nil {
			continue
		}
		tried++
		for _, lost := range []int{want, (want + 1) % partitions} {
			s := storetest.NewMemory(time.Now)
			e := &eventv1.MessagePersisted{
				Metadata: event.Metadata{Type: event.TypeMessagePersisted, ID: "evt_1", ChatID: v.Key, At: at,
					Origin: event.Origin{Generation: "g", Producer: "p"}, Version: 1}.Proto(),
				ChatId: v.Key, CreatedAt: timestamppb.New(at),
			}
			payload, err := proto.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			row := table.Event{ChatID: v.Key, Version: 1, EventID: "evt_1", Type: event.TypeMessagePersisted, Payload: payload}
			if err := s.BatchWrite(t.Context(), []store.Write{
				{Op: store.OpPut, Key: table.HeadKey(v.Key), Item: table.Head{Version: 1, Sequence: 1}.Item()},
				{Op: store.OpPut, Key: table.EventKey(v.Key, 1), Item: row.Item()},
			}); err != nil {
				t.Fatal(err)
			}
			report, err := Run(t.Context(), Config{
				Store: s, Clock: time.Now, Lost: []Lost{
					{Partition: kafka.Partition{Topic: kafka.MessagesPersisted, ID: int32(lost)}}},
				Read: func(context.Context, kafka.Partition, func(*kafka.Record)) error { return nil },
			})
			if err != nil || (report.Events == 1) != (lost == want) {
				t.Errorf("%.20q: partition %d lost everything, the contract says %d: %d events are put back, %v", v.Key, lost, want,
					report.Events, err)
			}
		}
	}
	if tried < 5 {
		t.Fatalf("%d vectors were tried", tried)
	}
}
