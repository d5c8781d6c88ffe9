package relay

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// One partition is unavailable: its chats wait, in order, and all others continue in the
// same cycle. Once it is available again, nothing is missing.
func TestUnavailablePartitionStopsOnlyItsChats(t *testing.T) {
	r := newFixture(t)
	var ids []string
	for range 20 {
		ids = append(ids, r.group())
	}
	down := kafka.Partition{Topic: kafka.MessagesPersisted,
		ID: int32(event.Partition(ids[0], int(kafka.Partitions(kafka.MessagesPersisted))))}
	re := r.relay()
	attempts, broken := 0, true
	publish := re.cfg.Publish
	re.cfg.Publish = func(ctx context.Context, list []eventlog.Publication) error {
		records := Records(list)
		for _, rec := range records {
			if broken && (kafka.Partition{Topic: rec.Topic, ID: rec.Partition}) == down {
				attempts++
				return &kafka.PartitionError{Partitions: []kafka.Partition{down}, Err: context.DeadlineExceeded}
			}
		}
		return publish(ctx, list)
	}
	r.rest(re) // publishes the creations, which are no messages
	for _, id := range ids {
		r.send(id)
		r.send(id)
	}
	for _, c := range r.commits[len(r.commits)-2*len(ids):] {
		re.Nudge(c)
	}
	for range 40 {
		r.must(re.Cycle(r.ctx))
	}
	waiting := 0
	seen := map[string]int64{}
	for _, e := range r.log {
		seen[e.GetChatId()] = max(seen[e.GetChatId()], e.GetMetadata().GetVersion())
	}
	for _, id := range ids {
		switch out := event.Partition(id, int(kafka.Partitions(down.Topic))) == int(down.ID); {
		case out && seen[id] != 2:
			t.Fatalf("%s: published up to version %d, expected 2: its partition is unavailable", id, seen[id])
		case out:
			waiting++
		case seen[id] != 4:
			t.Fatalf("%s: published up to version %d, expected 4", id, seen[id])
		}
	}
	if waiting == 0 || attempts != 1 {
		t.Fatalf("%d chats wait, expected some; %d attempts, expected 1", waiting, attempts)
	}
	if n := re.Stats().Unavailable; n != 1 {
		t.Fatalf("the metric has %d unavailable partitions, expected 1", n)
	}
	// It is retried after 2, 4, 8 … seconds, not in every cycle.
	for range 30 {
		r.now = r.now.Add(time.Second)
		r.must(re.Cycle(r.ctx))
	}
	if attempts < 3 || attempts > 6 {
		t.Fatalf("%d attempts in 30 s, expected 3 to 6", attempts)
	}
	broken = false
	r.now = r.now.Add(time.Minute)
	r.rest(re)
	r.check(true)
	if n := re.Stats().Unavailable; n != 0 {
		t.Fatalf("the metric has %d unavailable partitions, expected 0", n)
	}
}

// Where none of several partitions accepts the events of chats, Kafka is away: the cycle is repeated,
// and no partition is left out. But events of partitions that refused before, of which so many wait
// that they fill a transaction, let the other chats go on.
func TestNoPartitionAccepts(t *testing.T) {
	r := newFixture(t)
	partition := func(id string) kafka.Partition {
		return kafka.Partition{Topic: kafka.MessagesPersisted,
			ID: int32(event.Partition(id, int(kafka.Partitions(kafka.MessagesPersisted))))}
	}
	lower := func() (id string) {
		for id = r.group(); event.Shard(id) >= event.Shards/2; id = r.group() {
		}
		return id
	}
	first, second, other := lower(), lower(), r.group()
	for partition(second) == partition(first) {
		second = lower()
	}
	for partition(other) == partition(first) || partition(other) == partition(second) ||
		event.Shard(other) <= max(event.Shard(first), event.Shard(second)) { // the sweep reads it last
		other = r.group()
	}
	refuses := func(kafka.Partition) bool { return false }
	re := r.relay()
	publish := re.cfg.Publish
	re.cfg.Publish = func(ctx context.Context, list []eventlog.Publication) error {
		records := Records(list)
		results := make(kgo.ProduceResults, len(records))
		for i, rec := range records {
			results[i].Record = rec
			if refuses(kafka.Partition{Topic: rec.Topic, ID: rec.Partition}) {
				results[i].Err = kerr.NotEnoughReplicas
			}
		}
		if results.FirstErr() != nil {
			return kafka.Refused(results)
		}
		return publish(ctx, list)
	}
	r.rest(re)
	refuses = func(kafka.Partition) bool { return true }
	r.send(first)
	r.send(second)
	r.now = r.now.Add(time.Minute)
	if err := re.Cycle(r.ctx); err == nil || re.Stats().Unavailable != 0 {
		t.Fatalf("%v, %d partitions are left out; expected an error and none", err, re.Stats().Unavailable)
	}
	refuses = func(p kafka.Partition) bool { return p == partition(first) || p == partition(second) }
	r.send(other)
	r.now = r.now.Add(time.Minute)
	r.must(re.Cycle(r.ctx))
	if n := re.Stats().Unavailable; n != 2 {
		t.Fatalf("%d partitions are left out, expected 2", n)
	}
	for range re.cfg.MaxBatch/2 + 1 {
		r.send(first)
		r.send(second)
	}
	published := len(r.log)
	r.send(other)
	r.now = r.now.Add(time.Minute)
	r.must(re.Cycle(r.ctx))
	if n := len(r.log) - published; n != 1 {
		t.Fatalf("%d events were published, expected that of the third chat", n)
	}
	refuses = func(kafka.Partition) bool { return false }
	r.now = r.now.Add(time.Minute)
	r.rest(re)
	r.check(true)
}

// A partition becomes available in the middle of a pass over several transactions, of which
// the first was refused: the later ones must not overtake it.
func TestOutageThatEndsInTheMiddle(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	re := r.relay()
	r.rest(re)
	for range 30 { // MaxBatch is 7
		r.send(id)
	}
	down := kafka.Partition{Topic: kafka.MessagesPersisted,
		ID: int32(event.Partition(id, int(kafka.Partitions(kafka.MessagesPersisted))))}
	publish, n := re.cfg.Publish, 0
	re.cfg.Publish = func(ctx context.Context, list []eventlog.Publication) error {
		if n++; n == 1 {
			return &kafka.PartitionError{Partitions: []kafka.Partition{down}, Err: context.DeadlineExceeded}
		}
		return publish(ctx, list)
	}
	re.cfg.Clock = func() time.Time { r.now = r.now.Add(300 * time.Millisecond); return r.now }
	r.now = r.now.Add(time.Minute)
	for range 5 {
		r.rest(re)
	}
	r.check(true)
}

// An operator's row for events that are already published is published again and deleted.
// It does not stay in the backlog.
func TestRowOfPublishedEvents(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	r.send(id)
	re := r.relay()
	r.rest(re)
	o := table.Outbox{Shard: event.Shard(id), AggregateID: id, FirstVersion: 1, Count: 2, CreatedAt: 1}
	r.must(r.store.BatchWrite(r.ctx, []store.Write{{Op: store.OpPut, Key: o.Key(), Item: o.Item()}}))
	n := len(r.log)
	r.rest(re)
	r.check(true)
	if len(r.log) != n+2 {
		t.Fatalf("%d events were published again, expected 2", len(r.log)-n)
	}
}
