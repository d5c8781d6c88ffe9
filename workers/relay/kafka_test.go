package relay

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

// onKafka makes a relay that publishes to a broker as the holder of a slot does.
func (r *fixture) onKafka(b *kafkatest.Broker, slot string, change func(*Config, *kafka.Client)) *Relay {
	r.t.Helper()
	c, err := kafka.NewTransactional(b.Addr, slot)
	r.must(err)
	r.t.Cleanup(c.Close)
	cfg := Config{
		Store: r.store, Serde: r.serde, Clock: func() time.Time { return r.now }, Logger: discard,
		Publish: Flatten(func(ctx context.Context, records []*kafka.Record) error { return kafka.Transact(ctx, c, records) }),
	}
	if change != nil {
		change(&cfg, c)
	}
	re, err := New(cfg)
	r.must(err)
	return re
}

// heads are the last committed versions of the chats.
func (r *fixture) heads() map[string]int64 {
	heads := map[string]int64{}
	for _, c := range r.commits {
		heads[c.ChatID] = max(heads[c.ChatID], c.Head.Version)
	}
	return heads
}

// readLog reads the committed records of all event topics from a position on until it has
// seen as many different events of the fixture's chats as there are, and returns the number
// of records read. It fails if a record has an event that the store does not have, if a record
// is in another partition than its chat's, or if first occurrences are out of order.
func (r *fixture) readLog(b *kafkatest.Broker, from kafkatest.Mark) (records int) {
	r.t.Helper()
	want, heads := r.events(), r.heads()
	type partitionKey struct {
		topic string
		chat  string
	}
	last := map[partitionKey]int64{}
	seen := map[string]map[int64]bool{}
	n := 0
	b.Read(r.t, from, func(rec *kafka.Record) bool {
		if heads[string(rec.Key)] == 0 {
			return false // another run's
		}
		e, err := r.serde.Decode(context.Background(), rec.Key, rec.Value)
		r.must(err)
		records++
		id, v := e.GetChatId(), e.GetMetadata().GetVersion()
		if p := event.Partition(id, int(kafka.Partitions(rec.Topic))); int(rec.Partition) != p || id != string(rec.Key) {
			r.t.Fatalf("the record of %s is in partition %d, expected %d", id, rec.Partition, p)
		}
		if v > heads[id] || e.GetMetadata().GetGeneration() != "g1" {
			r.t.Fatalf("%s: version %d is in the log, the store has up to %d", id, v, heads[id])
		}
		if seen[id] == nil {
			seen[id] = map[int64]bool{}
		}
		if seen[id][v] {
			return false // a repetition, which readers drop by generation, chat and version
		}
		if at := (partitionKey{rec.Topic, id}); v < last[at] {
			r.t.Fatalf("%s: version %d appears for the first time after version %d", id, v, last[at])
		} else {
			last[at] = v
		}
		seen[id][v] = true
		n++
		return n == want
	})
	return records
}

// Relays of different slots each publish their own shards only, whatever nudges they get.
func TestShardsAreDisjoint(t *testing.T) {
	r := newFixture(t)
	var even, odd []int
	for shard := range event.Shards {
		if shard%2 == 0 {
			even = append(even, shard)
		} else {
			odd = append(odd, shard)
		}
	}
	var set Set
	relays := []*Relay{r.relay(), r.relay()}
	for i, shards := range [][]int{even, odd} {
		cfg := relays[i].cfg
		cfg.Shards = shards
		re, err := New(cfg)
		r.must(err)
		relays[i] = re
		defer set.Add(re)()
	}
	of := map[int]int{}
	for range 40 {
		id := r.group()
		r.send(id)
		of[event.Shard(id)%2] += 3
	}
	r.must(relays[0].Cycle(r.ctx))
	if len(r.log) != of[0] {
		t.Fatalf("%d events from the first slot, expected %d", len(r.log), of[0])
	}
	want := [2]int{}
	for _, c := range r.commits {
		set.Nudge(c)
		want[event.Shard(c.ChatID)%2] += len(c.Events)
	}
	for i, re := range relays {
		if n := re.inbox.events; n != want[i] {
			t.Fatalf("%d events wait in the inbox, expected %d", n, want[i])
		}
	}
	for _, re := range relays {
		r.rest(re)
	}
	r.check(true)
	if s := set.Stats(); s.Published != int64(len(r.log)) || len(r.log) != of[0]+of[1] {
		t.Fatalf("%+v and %d records, expected %d of each", s, len(r.log), of[0]+of[1])
	}
	if _, err := New(Config{Store: r.store, Serde: r.serde, Publish: relays[0].cfg.Publish, Clock: time.Now,
		Logger: discard, Shards: []int{72}}); err == nil {
		t.Fatal("shard 72 was accepted, expected an error: the last is 71")
	}
}
