package restore

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// Search events that a partition lost are put back once; those of other partitions, those
// that are there still, and those that wait in the outbox anyway are not.
func TestSearchEventsAreRestored(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	now := time.Now()
	targets := search.DefaultTargets()
	row := func(stream string, first int64) (events []search.Recorded) {
		var blob []byte
		for i := range 20 {
			blob = append(blob, testkit.Value(search.Encode("u", search.Event{ClientID: fmt.Sprint(stream, i), OccurredAt: now,
				Content: &searchv1.SearchClick{SearchId: "s", ResultId: "r"}}))(t)...)
		}
		r := table.SearchEvents{Stream: stream, First: first, Count: 20, At: now.UnixMilli(), Events: blob,
			ExpiresAt: now.Add(time.Hour).Unix()}
		testkit.Must(t, st.BatchWrite(t.Context(), []store.Write{
			{Op: store.OpPut, Key: table.SearchEventsKey(stream, first), Item: r.Item()}}))
		return testkit.Value(search.Decode(r))(t)
	}
	published := row("srch_1", 1)
	row("srch_2", 1)
	waits := table.Outbox{Shard: event.Shard("srch_2"), AggregateID: "srch_2", FirstVersion: 1, Count: 20,
		CreatedAt: now.UnixMilli()}
	testkit.Must(t, st.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: waits.Key(), Item: waits.Item()}}))
	lost := kafka.Partition{Topic: "search_click_v1", ID: 3}
	var there, gone []string
	for _, e := range published {
		key, _ := testkit.Value(e.Envelope())(t).Key(search.KeyDedup)
		switch {
		case event.Partition(key, 8) != 3:
		case len(there) == 0:
			there = append(there, e.ID)
		default:
			gone = append(gone, e.ID)
		}
	}
	if len(there) == 0 || len(gone) == 0 {
		t.Fatalf("%v are there, %v gone: choose other ids", there, gone)
	}
	cfg := Config{Store: st, Clock: time.Now, Lost: []Lost{{Partition: lost}}, Search: targets,
		Partitions: map[string]int{lost.Topic: 8},
		Read: func(_ context.Context, _ kafka.Partition, each func(*kafka.Record)) error {
			each(&kafka.Record{Headers: []kafka.Header{{Key: kafka.HeaderEventID, Value: []byte(there[0])}}})
			return nil
		}}
	for range 2 { // a start that was cut short is repeated
		report := testkit.Value(Run(t.Context(), cfg))(t)
		testkit.Equal(t, "events", report.Events, len(gone))
	}
	var announced []string
	for r, err := range store.ScanAll(t.Context(), st, store.Scan{Table: store.Outbox, Segments: 1}) {
		testkit.Must(t, err)
		o := testkit.Value(table.OutboxFrom(r))(t)
		if o.AggregateID != "srch_1" {
			continue
		}
		for n := o.FirstVersion; n < o.FirstVersion+o.Count; n++ {
			announced = append(announced, search.ID(o.AggregateID, n))
		}
		if !o.Replay || o.Shard != event.Shard("srch_1") {
			t.Errorf("%+v", o)
		}
	}
	slices.Sort(announced)
	slices.Sort(gone)
	testkit.Equal(t, "announced", fmt.Sprint(announced), fmt.Sprint(gone))
	cfg.Lost[0].Partition.Topic = "messages.persisted"
	testkit.Equal(t, "events of another topic", testkit.Value(Run(t.Context(), cfg))(t).Events, 0)
	cfg.Lost[0] = Lost{Partition: lost, Since: now.Add(2 * Slack).UnixMilli()}
	testkit.Equal(t, "events that were trimmed", testkit.Value(Run(t.Context(), cfg))(t).Events, 0)
}
