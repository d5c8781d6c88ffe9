package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/store/table"
)

// inStore is a process whose log is in its store: chats, a relay, and what readers have of the log.
type inStore struct {
	store *embedded.Store
	log   *eventlog.Log
	chats *chat.Service
	relay *Relay
	shown map[kafka.Partition][]string // names of events, by offset
}

func openInStore(t *testing.T, disk *embeddedtest.Disk, drop func() bool) *inStore {
	t.Helper()
	p := &inStore{store: disk.Open(t, time.Now), shown: map[kafka.Partition][]string{}}
	p.log = testkit.Value(eventlog.Open(t.Context(), eventlog.Config{Store: p.store, Generation: "g1", MaxBytes: 1 << 30,
		Log: commitlog.NewLocal(records.Of(p.store), time.Now)}))(t)
	p.relay = testkit.Value(New(Config{Store: p.store, Serde: testkit.Value(newSerde())(t), Generation: "g1",
		Clock: time.Now, Logger: discard, Sweep: 20 * time.Millisecond, Deletes: true, Publish: p.log.Publish,
		MaxBatch: 20}))(t)
	p.chats = testkit.Value(chat.New(t.Context(), chat.Config{Store: p.store, Clock: time.Now, Generation: "g1",
		Producer: "p1", Committed: func(c chat.Commit) {
			if !drop() {
				p.relay.Nudge(c)
			}
		}}))(t)
	return p
}

// read reads what is new in the log, which has no gaps.
func (p *inStore) read(t *testing.T) {
	t.Helper()
	serde := testkit.Value(newSerde())(t)
	for _, spec := range event.Specs() {
		for id := range kafka.Partitions(spec.Topic) {
			at := kafka.Partition{Topic: spec.Topic, ID: id}
			for {
				list := testkit.Value(p.log.Read(context.WithoutCancel(t.Context()), at, int64(len(p.shown[at])), 1<<20))(t)
				if len(list) == 0 {
					break
				}
				for _, r := range list {
					e := testkit.Value(serde.Decode(context.WithoutCancel(t.Context()), r.Key, r.Value))(t)
					if r.Offset != int64(len(p.shown[at])) {
						t.Fatalf("offset %d of %s follows %d records", r.Offset, at, len(p.shown[at]))
					}
					p.shown[at] = append(p.shown[at], eventName(e))
				}
			}
		}
	}
}

// check demands that each event of the store is in the log once, in order of versions.
func (p *inStore) check(t *testing.T) (events int) {
	t.Helper()
	count := map[string]int{}
	for at, names := range p.shown {
		last := map[string]int64{}
		for _, name := range names {
			count[name]++
			f := strings.Split(name, "/")
			version := testkit.Value(strconv.ParseInt(f[2], 10, 64))(t)
			if version <= last[f[1]] {
				t.Fatalf("%s of %s comes behind version %d", name, at, last[f[1]])
			}
			last[f[1]] = version
		}
	}
	for row, err := range store.ScanAll(t.Context(), p.store, store.Scan{Table: store.Events, Segments: 1}) {
		testkit.Must(t, err)
		e := testkit.Value(table.EventFrom(row))(t)
		name := fmt.Sprint("g1/", e.ChatID, "/", e.Version)
		if n := count[name]; n != 1 {
			t.Fatalf("%s is in the log %d times", name, n)
		}
		delete(count, name)
		events++
	}
	if len(count) > 0 {
		t.Fatalf("the store does not have %v, which are in the log", count)
	}
	return events
}

// The power fails at any moment of a load, again and again on the same disk, while a relay publishes
// into the log of the store, with nudges and without. Afterwards the log begins with all that readers
// had of it, and in the end it has each event of the store exactly once, in order (K-068, K-072).
func TestPowerLossesOfTheStoreLog(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { storePowerLosses(t, rand.New(rand.NewPCG(seed, 41))) })
	}
}

func storePowerLosses(t *testing.T, rng *rand.Rand) {
	disk := embeddedtest.NewDisk(func() { time.Sleep(time.Millisecond) }) // a slow disk, in real time
	lossy := rng.IntN(2) == 0
	var ids []string
	var before map[kafka.Partition][]string
	for loss := range 6 {
		p := openInStore(t, disk, func() bool { return lossy && rand.IntN(3) == 0 })
		for _, u := range []string{"alice", "bob"} {
			testkit.Must(t, p.chats.EnsureUser(t.Context(), u))
		}
		if loss == 0 {
			for range 3 {
				c := testkit.Value(p.chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "alice", Name: "g",
					Members: []string{"bob"}}))(t)
				ids = append(ids, c.ChatID)
			}
		}
		p.read(t)
		for at, names := range before {
			if n := len(p.shown[at]); n < len(names) || !slices.Equal(p.shown[at][:len(names)], names) {
				t.Fatalf("%s has %v after a loss of power, readers had %v", at, p.shown[at], names)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = p.relay.Run(ctx) })
		for i := range 4 {
			running.Go(func() {
				for ctx.Err() == nil {
					_, _ = p.chats.Send(ctx, chat.Send{Caller: "alice", ChatID: ids[i%len(ids)], Content: "x"})
				}
			})
		}
		time.Sleep(time.Duration(20+rng.IntN(60)) * time.Millisecond) // the power fails at any moment of the load
		p.read(t)
		before = p.shown
		disk = disk.PowerLoss(rng)
		stop()
		running.Wait()
	}
	p := openInStore(t, disk, func() bool { return false })
	for range 3 {
		p.relay.lastSweep = time.Time{}
		testkit.Must(t, p.relay.Cycle(t.Context()))
	}
	p.read(t)
	events := p.check(t)
	if events < 100 {
		t.Errorf("%d events, expected at least 100: fewer prove nothing", events)
	}
}
