package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
)

// onKafka makes a relay that publishes to a broker as the holder of a slot does.
func (r *rig) onKafka(addr, slot string, shards []int, change func(*Config)) *Relay {
	r.t.Helper()
	c, err := kafka.NewTransactional(addr, slot)
	r.must(err)
	r.t.Cleanup(c.Close)
	cfg := Config{
		Store: r.store, Serde: r.serde, Clock: func() time.Time { return r.now }, Logger: discard, Shards: shards,
		Publish: func(ctx context.Context, records []*kafka.Record) error { return kafka.Transact(ctx, c, records) },
	}
	if change != nil {
		change(&cfg)
	}
	re, err := New(cfg)
	r.must(err)
	return re
}

// readLog reads the committed records of all event topics until it has met as many
// different events as there are, in the order of each partition, and fails if a
// record shows an event that its store does not have or a first occurrence comes
// out of order.
func (r *rig) readLog(addr string) {
	r.t.Helper()
	want := 0
	heads := map[string]int64{}
	for _, c := range r.commits {
		heads[c.ChatID] = max(heads[c.ChatID], c.Head.Version)
	}
	for _, v := range heads {
		want += int(v)
	}
	c, err := kafka.NewReader(addr, kafka.MessagesPersisted, kafka.MembershipsChanged, kafka.ChatsCreated)
	r.must(err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	type place struct {
		topic string
		chat  string
	}
	last := map[place]int64{}
	seen := map[string]map[int64]bool{}
	for n := 0; n < want; {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			r.t.Fatalf("%d of %d events are in the log", n, want)
		}
		fetches.EachRecord(func(rec *kafka.Record) {
			e, err := r.serde.Decode(context.Background(), rec.Key, rec.Value)
			r.must(err)
			id, v := e.GetChatId(), e.GetMetadata().GetVersion()
			if p := event.Partition(id, int(kafka.Partitions(rec.Topic))); int(rec.Partition) != p {
				r.t.Fatalf("partition %d, not %d", rec.Partition, p)
			}
			if v > heads[id] || e.GetMetadata().GetGeneration() != "g1" {
				r.t.Fatalf("%s: version %d of %d is in the log", id, v, heads[id])
			}
			if seen[id] == nil {
				seen[id] = map[int64]bool{}
			}
			if seen[id][v] {
				return // a repetition, which readers drop by generation, chat and version
			}
			if at := (place{rec.Topic, id}); v < last[at] {
				r.t.Fatalf("%s: version %d appears first after %d", id, v, last[at])
			} else {
				last[at] = v
			}
			seen[id][v] = true
			n++
		})
	}
}

// Two relays on one slot: the later fences the earlier, whose cycle fails and whose
// run ends; the log has every event, and the first occurrences are in order
// (K-073).
func TestLaterRelayFencesTheEarlier(t *testing.T) {
	b, err := kafka.OpenBroker(kafka.BrokerConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r := newRig(t)
	const slot = "parley-relay-0"
	ids := []string{r.group(), r.group()}
	a := r.onKafka(b.Addr(), slot, nil, nil)
	r.rest(a)
	r.send(ids[0])
	r.send(ids[1])
	next := r.onKafka(b.Addr(), slot, nil, nil)
	r.must(next.Cycle(r.ctx))

	// The stale one comes back, with nudges that it got late.
	r.send(ids[0])
	for _, c := range r.commits[len(r.commits)-3:] {
		a.Nudge(c)
	}
	if err := a.Run(r.ctx); !errors.Is(err, kafka.ErrFenced) {
		t.Fatalf("the stale relay ended with %v", err)
	}
	r.rest(next)
	r.checkOutbox()
	r.readLog(b.Addr())
}

// Relays of different slots each publish their shards, whatever they are told.
func TestShardsAreDisjoint(t *testing.T) {
	r := newRig(t)
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
		t.Fatalf("%d events from one slot, which has %d", len(r.log), of[0])
	}
	want := [2]int{}
	for _, c := range r.commits {
		set.Nudge(c)
		want[event.Shard(c.ChatID)%2]++
	}
	for i, re := range relays {
		if n := len(re.nudges); n != want[i] {
			t.Fatalf("%d nudges, not %d", n, want[i])
		}
	}
	for _, re := range relays {
		r.rest(re)
	}
	r.check(true)
	if s := set.Stats(); s.Published != int64(len(r.log)) || len(r.log) != of[0]+of[1] {
		t.Fatalf("%+v, %d records, %v", s, len(r.log), of)
	}
	if _, err := New(Config{Store: r.store, Serde: r.serde, Publish: relays[0].cfg.Publish, Clock: time.Now, Logger: discard, Shards: []int{64}}); err == nil {
		t.Fatal("shard 64 was accepted")
	}
}
