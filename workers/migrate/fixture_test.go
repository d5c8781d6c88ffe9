package migrate

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
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/relay/slot"
)

var discard = slog.New(slog.DiscardHandler)

var newSerde = sync.OnceValues(func() (*event.Serde, error) {
	ids, err := registry.New(storetest.NewMemory(time.Now)).Events(context.Background())
	if err != nil {
		return nil, err
	}
	return event.NewSerde(ids, nil)
})

const (
	slots     = 3
	schedules = 200
	required  = "fanout-workers"
	stranger  = "somebody-elses"
)

// fixture is an installation on one thread: a store, relays, a log in memory, and groups that
// read it. Everything of Parley in it is real except the brokers.
type fixture struct {
	t     *testing.T
	rng   *rand.Rand
	now   time.Time
	store *storetest.Memory
	chats *chat.Service
	serde *event.Serde
	ids   []string
	truth map[string][]string // ids of events, by declared topic and chat

	topics map[string]int32 // those that exist
	log    map[kafka.Partition][]*kafka.Record
	lanes  [slots]lane
	procs  []*proc
	groups map[string]*group
	calm   bool // nothing fails any more
	holder int
}

// lane is the brokers' state of a slot's transactional id.
type lane struct {
	epoch   int
	pending []*kafka.Record // of a transaction with an unknown outcome
}

// proc is a process that runs the relay of a slot, or believes so.
type proc struct {
	*relay.Relay
	slot   slot.Slot
	holder string
	epoch  int
}

// group is a consumer group, with the topics that it has loaded last.
type group struct {
	readable  []string
	committed map[kafka.Partition]int
	read      map[string]int // events seen, by declared topic and chat
}

func newFixture(t *testing.T, seed uint64) *fixture {
	t.Helper()
	w := &fixture{
		t: t, rng: rand.New(rand.NewPCG(seed, 11)), now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		truth: map[string][]string{}, topics: map[string]int32{}, log: map[kafka.Partition][]*kafka.Record{},
		groups: map[string]*group{},
	}
	w.store = storetest.NewMemory(w.clock)
	var err error
	w.serde, err = newSerde()
	w.must(err)
	w.chats, err = chat.New(t.Context(),
		chat.Config{Store: w.store, Clock: w.clock, Generation: "g1", Producer: "p1", Committed: w.committed})
	w.must(err)
	for _, u := range []string{"alice", "bob"} {
		w.must(w.chats.EnsureUser(t.Context(), u))
	}
	for _, topic := range kafka.Topics() {
		w.topics[topic.Name] = topic.Partitions
	}
	for _, name := range []string{required, stranger} {
		w.groups[name] = &group{readable: versions.State{}.Readable(bases()...), committed: map[kafka.Partition]int{},
			read: map[string]int{}}
	}
	for n := range slots {
		w.assign(n)
	}
	for range 4 {
		c, err := w.chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		w.must(err)
		w.ids = append(w.ids, c.ChatID)
	}
	return w
}

func bases() []string {
	return []string{kafka.MessagesPersisted, kafka.MembershipsChanged, kafka.ChatsCreated}
}

func (w *fixture) clock() time.Time { return w.now }

func (w *fixture) must(err error) {
	w.t.Helper()
	testkit.Must(w.t, err)
}

func (w *fixture) committed(c chat.Commit) {
	for _, e := range c.Events {
		key := event.SpecOf(e).Topic + " " + c.ChatID
		w.truth[key] = append(w.truth[key], e.GetMetadata().GetEventId())
	}
	for _, p := range w.procs {
		if w.rng.IntN(4) > 0 {
			p.Nudge(c)
		}
	}
}

// start gives a process a new relay, without any state.
func (w *fixture) start(p *proc) {
	p.epoch = 0
	r, err := relay.New(relay.Config{
		Store: w.store, Serde: w.serde, Clock: w.clock, Logger: discard, Shards: p.slot.Shards, MaxBatch: 5,
		Publish: relay.Flatten(func(_ context.Context, records []*kafka.Record) error { return w.publish(p, records) }),
		Topics: func(ctx context.Context) (versions.State, error) {
			if w.fails(10) {
				return versions.State{}, errUnavailable
			}
			return versions.Load(ctx, w.store)
		},
		Renew: func(ctx context.Context) error {
			if w.fails(6) {
				return errUnavailable
			}
			w.lanes[p.slot.Number].epoch++
			w.lanes[p.slot.Number].pending, p.epoch = nil, w.lanes[p.slot.Number].epoch
			return slot.Confirm(ctx, w.store, p.holder, p.slot)
		},
		Report: func(ctx context.Context, revision int64) error {
			if w.fails(3) {
				return errUnavailable
			}
			return slot.Report(ctx, w.store, p.holder, p.slot, revision)
		},
	})
	w.must(err)
	p.Relay = r
}

func (w *fixture) fails(of int) bool { return !w.calm && w.rng.IntN(of) == 0 }

// publish is a transaction. One with an unknown outcome may be committed much later, unless
// its producer is fenced or starts another.
func (w *fixture) publish(p *proc, records []*kafka.Record) error {
	l := &w.lanes[p.slot.Number]
	switch {
	case p.epoch == 0:
		l.epoch++
		p.epoch = l.epoch
	case p.epoch != l.epoch:
		return kafka.ErrFenced
	}
	l.pending = nil
	switch {
	case w.fails(8):
		return errUnavailable
	case w.fails(8):
		l.pending = records
		return errUnavailable
	case w.fails(10):
		w.write(records)
		return errUnavailable
	}
	w.write(records)
	return nil
}

// write appends records. It fails if an earlier version of a topic gets records after a later
// one has some.
func (w *fixture) write(records []*kafka.Record) {
	for _, r := range records {
		base, number, ok := versions.Base(r.Topic)
		if !ok || w.topics[r.Topic] == 0 {
			w.t.Fatalf("published to %q, which does not exist", r.Topic)
		}
		if want := event.Partition(string(r.Key), int(w.topics[r.Topic])); int(r.Partition) != want {
			w.t.Fatalf("%s: published to partition %d of %s, expected %d", r.Key, r.Partition, r.Topic, want)
		}
		for p, list := range w.log {
			if b, n, _ := versions.Base(p.Topic); b == base && n > number && len(list) > 0 {
				w.t.Fatalf("published to %s after its later version %s, expected never", r.Topic, p.Topic)
			}
		}
		p := kafka.Partition{Topic: r.Topic, ID: r.Partition}
		w.log[p] = append(w.log[p], r)
	}
}

// consume makes a group read some records. It fails if an event arrives before an earlier one.
func (w *fixture) consume(name string, limit int) {
	g := w.groups[name]
	var parts []kafka.Partition
	for p := range w.log {
		if slices.Contains(g.readable, p.Topic) && g.committed[p] < len(w.log[p]) {
			parts = append(parts, p)
		}
	}
	slices.SortFunc(parts, func(a, b kafka.Partition) int { return strings.Compare(a.String(), b.String()) })
	w.rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	for _, p := range parts {
		for ; g.committed[p] < len(w.log[p]) && limit > 0; limit-- {
			r := w.log[p][g.committed[p]]
			base, _, _ := versions.Base(r.Topic)
			key := base + " " + string(r.Key)
			i := slices.Index(w.truth[key], string(r.Headers[0].Value))
			if i > g.read[key] {
				w.t.Fatalf("group %s: event %d of %s arrived after event %d, expected no gap", name, i, key, g.read[key]-1)
			}
			g.read[key] = max(g.read[key], i+1)
			g.committed[p]++
		}
	}
}

// Create implements Cluster.
func (w *fixture) Create(_ context.Context, base string, t kafka.Topic, like string) error {
	if w.fails(4) {
		return errUnavailable
	}
	if b, _, ok := versions.Base(t.Name); !ok || b != base || w.topics[like] == 0 || t.Partitions < 1 {
		w.t.Fatalf("invalid creation of %s (%d partitions) for %s like %s", t.Name, t.Partitions, base, like)
	}
	if n := w.topics[t.Name]; n != 0 && n != t.Partitions {
		w.t.Fatalf("%s has %d partitions, %d are requested, expected the same", t.Name, n, t.Partitions)
	}
	w.topics[t.Name] = t.Partitions
	if w.fails(4) {
		return errUnavailable
	}
	return nil
}

// Empty implements Cluster.
func (w *fixture) Empty(_ context.Context, topic string) (bool, error) {
	for p, list := range w.log {
		if p.Topic == topic && len(list) > 0 {
			return false, nil
		}
	}
	return true, nil
}

// Relays implements Cluster.
func (w *fixture) Relays(ctx context.Context, revision int64) ([]string, error) {
	return slot.Unreported(ctx, w.store, revision)
}

// Subscribed implements Cluster.
func (w *fixture) Subscribed(_ context.Context, topic string) ([]string, error) {
	if !slices.Contains(w.groups[required].readable, topic) {
		return []string{required}, nil
	}
	return nil, nil
}

// Unread implements Cluster.
func (w *fixture) Unread(_ context.Context, topic string) (list []lag.Unread, err error) {
	for name, g := range w.groups {
		u := lag.Unread{Group: name}
		for p, records := range w.log {
			if p.Topic == topic {
				u.Records += int64(len(records) - g.committed[p])
			}
		}
		list = append(list, u)
	}
	return list, nil
}

// Flush implements Cluster.
func (w *fixture) Flush(context.Context) error {
	if w.fails(4) {
		return errUnavailable
	}
	return nil
}

// act makes one thing happen in the installation.
func (w *fixture) act() {
	ctx := w.t.Context()
	switch w.rng.IntN(12) {
	case 0, 1, 2:
		_, err := w.chats.Send(ctx, chat.Send{Caller: "alice", ChatID: w.ids[w.rng.IntN(len(w.ids))], Content: "x"})
		w.must(err) // the API never waits
	case 3:
		id := w.ids[w.rng.IntN(len(w.ids))]
		user := fmt.Sprint("u", len(w.truth[kafka.MembershipsChanged+" "+id]))
		w.must(w.chats.EnsureUser(ctx, user))
		_, err := w.chats.Change(ctx, chat.OpAdd,
			chat.MemberChange{Caller: "alice", ChatID: id, UserID: user, Role: table.Member})
		w.must(err)
	case 4, 5, 6:
		p := w.procs[w.rng.IntN(len(w.procs))]
		if err := p.Cycle(ctx); errors.Is(err, kafka.ErrFenced) || errors.Is(err, slot.ErrNotHeld) {
			w.start(p) // as its slot does
		}
		w.now = w.now.Add(time.Duration(w.rng.IntN(900)) * time.Millisecond)
	case 7:
		if w.rng.IntN(4) == 0 {
			w.assign(w.rng.IntN(slots))
		} else if w.rng.IntN(3) == 0 {
			w.start(w.procs[w.rng.IntN(len(w.procs))]) // killed and restarted
		}
	case 8:
		if l := &w.lanes[w.rng.IntN(slots)]; l.pending != nil {
			w.write(l.pending)
			l.pending = nil
		}
	case 9, 10:
		w.consume([]string{required, stranger}[w.rng.IntN(2)], 1+w.rng.IntN(6))
	case 11:
		s, err := versions.Load(ctx, w.store)
		w.must(err)
		w.groups[[]string{required, stranger}[w.rng.IntN(2)]].readable = s.Readable(bases()...)
	}
}

// rest lets everything finish, and fails unless each group has seen each event.
func (w *fixture) rest() {
	ctx := w.t.Context()
	w.calm = true
	s, err := versions.Load(ctx, w.store)
	w.must(err)
	for range 6 {
		for _, p := range w.procs {
			if err := p.Cycle(ctx); errors.Is(err, kafka.ErrFenced) || errors.Is(err, slot.ErrNotHeld) {
				w.start(p)
			}
		}
		w.now = w.now.Add(3 * time.Second)
	}
	for name, g := range w.groups {
		g.readable = s.Readable(bases()...)
		w.consume(name, 1<<30)
		for key, want := range w.truth {
			if g.read[key] != len(want) {
				w.t.Fatalf("group %s has seen %d of %d events of %s; topics %+v", name, g.read[key], len(want), key, s)
			}
		}
	}
}

// drive makes one step of a migration, sometimes from a stale state, or is killed after it.
func (w *fixture) drive(m *Migrator, r Request, stale *versions.State) {
	ctx := w.t.Context()
	s, err := versions.Load(ctx, w.store)
	w.must(err)
	if w.rng.IntN(5) == 0 {
		s = *stale
	}
	*stale = s
	if finished(s, r) {
		return
	}
	switch w.rng.IntN(40) {
	case 0:
		_, _ = m.Abort(ctx, true)
	case 1:
		m.thawOnError(ctx, r)
	case 2:
		w.now = w.now.Add(2 * time.Minute) // its driver has ended
		w.must(m.thaw(ctx))
	default:
		_, _, err = m.step(ctx, s, r)
		if err != nil && !errors.Is(err, errUnavailable) && !errors.Is(err, versions.ErrChanged) &&
			!errors.Is(err, ErrTooSlow) && !errors.Is(err, ErrBusy) {
			w.t.Fatalf("step from %+v: %v", s.Move, err)
		}
	}
}

// finish runs a migration to its end, without further faults.
func (w *fixture) finish(m *Migrator, r Request) {
	w.calm = true
	w.procs = slices.DeleteFunc(w.procs, func(p *proc) bool { return w.newest(p.slot.Number) != p })
	for range 3000 {
		s, err := versions.Load(w.t.Context(), w.store)
		w.must(err)
		if finished(s, r) {
			return
		}
		if _, _, err := m.step(w.t.Context(), s, r); err != nil && !errors.Is(err, ErrTooSlow) {
			w.t.Fatal(err)
		} else if err != nil {
			m.thawOnError(w.t.Context(), r)
		}
		w.act()
	}
	w.t.Fatal("the migration has not ended after 3000 steps")
}

func (w *fixture) newest(n int) (p *proc) {
	for _, o := range w.procs {
		if o.slot.Number == n {
			p = o
		}
	}
	return p
}
