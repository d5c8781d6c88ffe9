package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

var discard = slog.New(slog.DiscardHandler)

// fixture is a store with chats, and a log in memory that relays publish to.
type fixture struct {
	t       *testing.T
	ctx     context.Context
	run     string // part of all ids; set where a broker has the chats of other runs
	now     time.Time
	store   *storetest.Memory
	chats   *chat.Service
	serde   *event.Serde
	commits []chat.Commit
	nudge   func(chat.Commit) // called for each commit, unless nil
	log     []event.Event
	room    int                          // for events of nudges; 0: the default
	fail    func() (before, after error) // of a transaction: nothing was written, or the outcome is unknown
	stable  error
	deletes bool // Publish deletes rows
	copies  bool // publications may be of no chat
	copied  int  // records of such publications
}

// newSerde makes the one Serde of all fixtures: registering the schemas takes longer than
// most of the tests.
var newSerde = sync.OnceValues(func() (*event.Serde, error) {
	ids, err := registry.New(storetest.NewMemory(time.Now)).Events(context.Background())
	if err != nil {
		return nil, err
	}
	return event.NewSerde(ids, nil)
})

func newFixture(t *testing.T) *fixture {
	t.Helper()
	r := &fixture{t: t, ctx: t.Context(), now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return r.now }
	r.store = storetest.NewMemory(clock)
	serde, err := newSerde()
	r.must(err)
	r.serde = serde
	n := 0
	r.chats, err = chat.New(r.ctx, chat.Config{
		Store: r.store, Clock: clock, Generation: "g1", Producer: "p1",
		NewID: func(p string) string { n++; return fmt.Sprintf("%s%s%0*d", p, r.run, 26-len(r.run), n) },
		Committed: func(c chat.Commit) {
			r.commits = append(r.commits, c)
			if r.nudge != nil {
				r.nudge(c)
			}
		},
	})
	r.must(err)
	for _, u := range []string{"alice", "bob"} {
		r.must(r.chats.EnsureUser(r.ctx, u))
	}
	r.fail = func() (error, error) { return nil, nil }
	return r
}

func (r *fixture) must(err error) {
	r.t.Helper()
	testkit.Must(r.t, err)
}

func (r *fixture) group() string {
	r.t.Helper()
	c, err := r.chats.CreateGroup(r.ctx, chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
	r.must(err)
	return c.ChatID
}

func (r *fixture) send(id string) {
	r.t.Helper()
	_, err := r.chats.Send(r.ctx, chat.Send{Caller: "alice", ChatID: id, Content: "x"})
	r.must(err)
}

func (r *fixture) relay() *Relay {
	r.t.Helper()
	re, err := New(Config{
		Store: r.store, Serde: r.serde, Clock: func() time.Time { return r.now }, Logger: discard, MaxBatch: 7,
		MaxNudges: r.room,
		Publish:   r.publish, Deletes: r.deletes,
		Flush: func(context.Context) error { return r.stable },
	})
	r.must(err)
	return re
}

// publish appends to the log, and in the mode with deletions deletes the rows at the same time.
func (r *fixture) publish(ctx context.Context, list []eventlog.Publication) error {
	before, after := r.fail()
	if before != nil {
		return before
	}
	var deletes []store.Write
	for _, p := range list {
		for i, rec := range p.Records {
			e, err := r.serde.Decode(context.Background(), rec.Key, rec.Value)
			r.must(err)
			if want := event.Partition(e.GetChatId(), int(kafka.Partitions(rec.Topic))); int(rec.Partition) != want {
				r.t.Fatalf("the record is in partition %d, expected %d", rec.Partition, want)
			}
			if v := p.Last - int64(len(p.Records)-1-i); p.Chat == "" && r.copies {
				r.copied++
			} else if p.Chat != e.GetChatId() || v != e.GetMetadata().GetVersion() {
				r.t.Fatalf("record %d of a publication up to version %d of chat %s is version %d of %s", i, p.Last, p.Chat,
					e.GetMetadata().GetVersion(), e.GetChatId())
			}
			r.log = append(r.log, e)
		}
		deletes = append(deletes, store.Write{Op: store.OpDelete, Key: p.Row})
	}
	if r.deletes {
		for part := range slices.Chunk(deletes, store.MaxBatchWrite) {
			r.must(r.store.BatchWrite(ctx, part))
		}
	}
	return after
}

// check fails unless the first occurrences of all events in the log are in order and, if
// empty is set, every event is in the log and the outbox is empty.
func (r *fixture) check(empty bool) {
	r.t.Helper()
	last := map[string]int64{}
	for _, e := range r.log {
		id, v := e.GetChatId(), e.GetMetadata().GetVersion()
		if v > last[id]+1 {
			r.t.Fatalf("%s: version %d follows %d, expected at most %d", id, v, last[id], last[id]+1)
		}
		last[id] = max(last[id], v)
	}
	for _, c := range r.commits {
		if last[c.ChatID] < c.Head.Version && empty {
			r.t.Fatalf("%s: published up to version %d, expected %d", c.ChatID, last[c.ChatID], c.Head.Version)
		}
	}
	if empty {
		r.checkOutbox()
	}
}

func (r *fixture) checkOutbox() {
	r.t.Helper()
	page, err := r.store.Scan(r.ctx, store.Scan{Table: store.Outbox, Segments: 1})
	r.must(err)
	if len(page.Rows) > 0 {
		r.t.Fatalf("%d rows remain in the outbox, expected none; the first is %s", len(page.Rows), page.Rows[0].Key)
	}
}

// rest runs a relay until nothing is left to publish or to delete.
func (r *fixture) rest(re *Relay) {
	r.t.Helper()
	for range 3 {
		for n := 0; n == 0 || len(re.inbox.order) > 0; n++ {
			r.must(re.Cycle(r.ctx))
		}
		r.now = r.now.Add(3 * time.Second)
	}
}

func TestNudgesInOrderReadNothing(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	id := r.group()
	r.must(re.Cycle(r.ctx)) // the first sweep
	r.commits = nil
	for range 20 {
		r.send(id)
	}
	for _, c := range r.commits {
		re.Nudge(c)
	}
	before := len(r.log)
	r.must(r.store.Close()) // reads would fail
	for list := re.inbox.dequeue(7); len(list) > 0; list = re.inbox.dequeue(7) {
		r.must(re.publishNudges(r.ctx, list))
	}
	if n := len(r.log) - before; n != 20 {
		t.Fatalf("%d events are published, expected 20", n)
	}
}

func TestSweepFindsEventsWithoutNudges(t *testing.T) {
	r := newFixture(t)
	ids := []string{r.group(), r.group()}
	for range 30 {
		r.send(ids[0])
		r.send(ids[1])
	}
	r.rest(r.relay())
	r.check(true)
	if len(r.log) != 64 {
		t.Fatalf("%d records, expected 64", len(r.log))
	}
}

// A row goes once its records are on stable storage, and no sooner (EV67, K-074).
func TestRowsStayUntilTheRecordsAreStable(t *testing.T) {
	r := newFixture(t)
	r.group()
	re := r.relay()
	r.stable = errors.New("the disk is busy")
	if err := re.Cycle(r.ctx); !errors.Is(err, r.stable) {
		t.Fatalf("the cycle returned %v, expected %v", err, r.stable)
	}
	page, err := r.store.Scan(r.ctx, store.Scan{Table: store.Outbox, Segments: 1})
	r.must(err)
	if len(page.Rows) != 2 || len(r.log) != 2 {
		t.Fatalf("%d rows and %d records, expected 2 of each", len(page.Rows), len(r.log))
	}
	// After a crash here the next relay publishes them again.
	r.stable = nil
	r.rest(r.relay())
	r.check(true)
	if len(r.log) != 4 {
		t.Fatalf("%d records, expected 2 events twice", len(r.log))
	}
}

// A row that cannot be published stops its chat and no other.
func TestPoisonStopsOneChat(t *testing.T) {
	r := newFixture(t)
	bad, good := r.group(), r.group()
	key := table.EventKey(bad, 1)
	old, err := r.store.Get(r.ctx, key, store.Strong)
	r.must(err)
	broken := store.Write{Op: store.OpUpdate, Key: key, Update: store.Update{Remove: []string{"event_type"}}}
	r.must(r.store.Transact(r.ctx, store.Plan{Writes: []store.Write{broken}}))
	re := r.relay()
	r.rest(re)
	r.send(bad)
	re.Nudge(r.commits[len(r.commits)-1])
	r.send(good)
	re.Nudge(r.commits[len(r.commits)-1])
	r.rest(re)
	if n := re.Stats().Poisoned; n != 1 || len(r.log) != 3 {
		t.Fatalf("%d rows poisoned, expected 1; %d records, expected 3", n, len(r.log))
	}
	for _, e := range r.log {
		if e.GetChatId() == bad {
			t.Fatal("an event was published ahead of an earlier one that cannot be published")
		}
	}
	r.must(r.store.Transact(r.ctx, store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: key, Item: old}}}))
	r.rest(re)
	r.check(true)
}

// Two relays run at once. They crash, lose nudges and transactions, and receive nudges late
// and twice. In any case the log has every event, first occurrences in order (EV17).
func TestRandomSchedules(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		r := newFixture(t)
		r.room = 1 + rng.IntN(12)
		down := errors.New("kafka is unavailable")
		r.fail = func() (error, error) {
			switch rng.IntN(8) {
			case 0:
				return down, nil
			case 1:
				return nil, down
			}
			return nil, nil
		}
		relays := []*Relay{r.relay(), r.relay()}
		ids := []string{r.group(), r.group(), r.group()}
		var late []chat.Commit
		for range 120 {
			re := relays[rng.IntN(2)]
			switch rng.IntN(12) {
			case 0, 1, 2, 3:
				r.send(ids[rng.IntN(3)])
				late = append(late, r.commits[len(r.commits)-1])
			case 4, 5, 6:
				if len(late) > 0 {
					i := rng.IntN(len(late))
					re.Nudge(late[i])
					if rng.IntN(3) > 0 {
						late = append(late[:i], late[i+1:]...)
					}
				}
			case 7, 8:
				if err := re.Cycle(r.ctx); err != nil {
					re.lastSweep = time.Time{}
				}
				r.now = r.now.Add(time.Duration(rng.IntN(700)) * time.Millisecond)
			case 9:
				if rng.IntN(5) == 0 { // a crash
					relays[rng.IntN(2)] = r.relay()
				}
			case 10, 11: // as Run does: the next deletion covers what is published meanwhile
				if err := re.pass(r.ctx); err != nil {
					re.lastSweep = time.Time{}
				}
				if re.deleting == nil {
					re.deleting = re.newDeletion()
				} else if rng.IntN(2) == 0 {
					re.deleting.run(r.ctx, re.cfg)
					r.must(re.finishDeletion())
				}
			}
			r.check(false)
		}
		r.fail = func() (error, error) { return nil, nil }
		for _, re := range relays {
			re.deleting = nil
			re.lastSweep = time.Time{}
			r.rest(re)
		}
		r.check(true)
	}
}

// In the log of the store each event is once, and as often again as operators replay it, whatever
// crashes, nudges are lost, late or repeated, and outcomes are unknown.
func TestRandomSchedulesInTheStore(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 17))
		r := newFixture(t)
		r.room, r.deletes = 1+rng.IntN(12), true
		r.stable = errors.New("there is nothing to flush")
		down := errors.New("the log is unavailable")
		r.fail = func() (error, error) {
			switch rng.IntN(8) {
			case 0:
				return down, nil
			case 1:
				return nil, down
			}
			return nil, nil
		}
		re := r.relay()
		ids := []string{r.group(), r.group(), r.group()}
		var late []chat.Commit
		want := map[string]int{} // replays of each event
		for n := range 120 {
			switch rng.IntN(12) {
			case 0, 1, 2, 3:
				r.send(ids[rng.IntN(3)])
				late = append(late, r.commits[len(r.commits)-1])
			case 4, 5, 6:
				if len(late) > 0 {
					i := rng.IntN(len(late))
					re.Nudge(late[i])
					if rng.IntN(3) > 0 {
						late = append(late[:i], late[i+1:]...)
					}
				}
			case 7, 8, 9:
				if err := re.Cycle(r.ctx); err != nil {
					re.lastSweep = time.Time{}
				}
				r.now = r.now.Add(time.Duration(rng.IntN(700)) * time.Millisecond)
			case 10:
				if rng.IntN(5) == 0 { // a crash
					re = r.relay()
				}
			case 11:
				if c := r.commits[rng.IntN(len(r.commits))]; rng.IntN(3) == 0 {
					row := table.Outbox{Shard: event.Shard(c.ChatID), AggregateID: c.ChatID, CreatedAt: 1, Replay: true,
						Count: int64(len(c.Events)), FirstVersion: c.Head.Version - int64(len(c.Events)) + 1, ReplayID: fmt.Sprint(n)}
					r.must(r.store.BatchWrite(r.ctx, []store.Write{{Op: store.OpPut, Key: row.Key(), Item: row.Item()}}))
					for _, e := range c.Events {
						want[eventName(e)]++
					}
				}
			}
			r.check(false)
		}
		r.fail = func() (error, error) { return nil, nil }
		re.lastSweep = time.Time{}
		r.rest(re)
		r.check(true)
		for _, c := range r.commits {
			for _, e := range c.Events {
				want[eventName(e)]++
			}
		}
		for _, e := range r.log {
			want[eventName(e)]--
		}
		for name, n := range want {
			if n != 0 {
				t.Fatalf("seed %d: %s is in the log %d times less than it should be", seed, name, n)
			}
		}
	}
}

// Each event that the log refused is reported, and published later (L-118, L-119, L-190).
func TestFailuresAreReported(t *testing.T) {
	r := newFixture(t)
	reported := map[string]int{}
	relay := r.relay()
	relay.cfg.Failed = func(eventType string) { reported[eventType]++ }
	var log strings.Builder
	relay.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	id := r.group()
	r.send(id)
	down := errors.New("no broker")
	r.fail = func() (error, error) { return down, nil }
	if err := relay.Cycle(r.ctx); !errors.Is(err, down) {
		t.Fatalf("the cycle returned %v, expected %v", err, down)
	}
	if reported["ChatCreated"] != 1 || reported["MembershipChanged"] == 0 || reported["MessagePersisted"] != 1 {
		t.Fatalf("reported failures by event type: %v, expected one of each of three types", reported)
	}
	if !strings.Contains(log.String(), "level=ERROR msg=lifecycle_event_publish_failed") ||
		!strings.Contains(log.String(), "ChatCreated:1") {
		t.Fatalf("expected lifecycle_event_publish_failed with ChatCreated:1 at ERROR, the log has\n%s", log.String())
	}
	r.fail = func() (error, error) { return nil, nil }
	relay.lastSweep = time.Time{}
	r.rest(relay)
	r.check(true)
}

func eventName(e event.Event) string {
	md := e.GetMetadata()
	return fmt.Sprint(md.GetGeneration(), "/", e.GetChatId(), "/", md.GetVersion())
}

// events is the number of committed events.
func (r *fixture) events() (n int) {
	r.t.Helper()
	heads := map[string]int64{}
	for _, c := range r.commits {
		heads[c.ChatID] = max(heads[c.ChatID], c.Head.Version)
	}
	for _, v := range heads {
		n += int(v)
	}
	return n
}
