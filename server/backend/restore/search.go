package restore

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// searchEvents puts back what topics of search events have lost, as long as the store has it.
// They have no order to keep: each row of the outbox is a replay.
func (r *run) searchEvents(ctx context.Context) error {
	lost := false
	for p := range r.since {
		lost = lost || r.Partitions[p.Topic] > 0
	}
	if !lost {
		return nil
	}
	for row, err := range store.ScanAll(ctx, r.Store, store.Scan{Table: store.SearchEvents, Segments: 1}) {
		if err != nil {
			return fmt.Errorf("read search events: %w", err)
		}
		stored, err := table.SearchEventsFrom(row)
		if err != nil {
			continue
		}
		events, err := search.Decode(stored)
		if err != nil {
			continue // it cannot be published, and never was
		}
		if err := r.searchRow(ctx, stored, events); err != nil {
			return err
		}
	}
	return nil
}

// searchRow puts events of a row back, in runs.
func (r *run) searchRow(ctx context.Context, row table.SearchEvents, events []search.Recorded) error {
	waits, err := r.Store.Get(ctx, outboxRow(row.Stream, row.First, row.Count, row.At, false).Key(), store.Strong)
	if err != nil || waits != nil {
		return err // it is still to be published
	}
	var writes []store.Write
	n := int64(0)
	for i := range int64(len(events)) + 1 {
		if i < int64(len(events)) && r.lacks(events[i], row.At) {
			n++
			continue
		}
		if n > 0 {
			o := outboxRow(row.Stream, row.First+i-n, n, r.Clock().UnixMilli(), true)
			writes = append(writes, store.Write{Op: store.OpPut, Key: o.Key(), Item: o.Item()})
			r.report.Events += int(n)
		}
		n = 0
	}
	if len(writes) == 0 {
		return nil
	}
	r.report.Rows += len(writes)
	if err := r.Store.Transact(ctx, store.Plan{Writes: writes}); err != nil {
		return fmt.Errorf("write rows: %w", err)
	}
	return nil
}

func outboxRow(stream string, first, count, at int64, replay bool) table.Outbox {
	return table.Outbox{Shard: event.Shard(stream), AggregateID: stream, FirstVersion: first, Count: count, CreatedAt: at,
		Replay: replay}
}

// lacks reports whether the event's partition lost records, and does not have it.
func (r *run) lacks(e search.Recorded, at int64) bool {
	to, ok := r.Search[e.GetEventType()]
	envelope, err := e.Envelope()
	if !ok || err != nil || r.present[e.ID] || r.Partitions[to.Topic] < 1 {
		return false
	}
	key, _ := envelope.Key(to.Key)
	since, damaged := r.since[kafka.Partition{Topic: to.Topic, ID: int32(event.Partition(key, r.Partitions[to.Topic]))}]
	return damaged && at+Slack.Milliseconds() >= since
}
