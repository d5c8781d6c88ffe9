package serving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// partitionFixture has partitions on a store whose writes of cursors can fail.
type partitionFixture struct {
	store.Store
	t     *testing.T
	cfg   PartitionConfig
	log   commitlog.Log
	fail  atomic.Bool
	plans atomic.Int64 // that came to the store
	rows  atomic.Int64 // in them
	// invalid is the partition key of rows that the store does not take.
	invalid atomic.Value
}

func newPartitionFixture(t *testing.T) *partitionFixture {
	t.Helper()
	disk := embeddedtest.NewDisk(nil).Open(t, time.Now)
	b := &partitionFixture{Store: disk, t: t, log: commitlog.NewLocal(records.Of(disk), time.Now)}
	logger := slog.New(slog.DiscardHandler)
	b.cfg = PartitionConfig{
		Store: b, Log: b.log, Memory: NewMemory(0),
		Flusher: NewFlusher(b, 1, time.Now, logger), Clock: time.Now, Logger: logger,
	}
	return b
}

func (b *partitionFixture) Transact(ctx context.Context, p store.Plan) error {
	b.plans.Add(1)
	b.rows.Add(int64(len(p.Writes)))
	if b.fail.Load() {
		return store.ErrUnavailable
	}
	for _, w := range p.Writes {
		if w.Key.PK == b.invalid.Load() {
			return store.ErrInvalid
		}
	}
	return b.Store.Transact(ctx, p)
}

func groupOf(names ...string) (list []StoredGroup) {
	for _, n := range names {
		list = append(list, StoredGroup{Config: machine.Config{
			Name: n, Generation: 1, MaxAttempts: 5, Lease: time.Minute,
		}, State: machine.Active})
	}
	return list
}

// open opens a partition of a topic with groups that begin at the beginning.
func (b *partitionFixture) open(topic uint64, groups ...string) *Partition {
	b.t.Helper()
	p, err := OpenPartition(b.t.Context(), b.cfg, commitlog.Partition{Topic: topic}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, g := range groupOf(groups...) {
		p.Do(func(m *machine.Machine) {
			if _, _, _, err := m.Subscribe(g.Config, machine.Begin{Backfill: true}); err != nil {
				b.t.Fatal(err)
			}
		})
		if err := b.BatchWrite(b.t.Context(), []store.Write{p.First(g.Config.Name)}); err != nil {
			b.t.Fatal(err)
		}
	}
	return p
}

// again opens the partition as the next process does.
func (b *partitionFixture) again(p *Partition, groups ...StoredGroup) *Partition {
	b.t.Helper()
	p, err := OpenPartition(b.t.Context(), b.cfg, p.Address, groups)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// publish stores a batch of n messages of size bytes.
func (b *partitionFixture) publish(p *Partition, n, size int) {
	b.t.Helper()
	list := make([]*topicv1.TopicMessage, n)
	for i := range list {
		list[i] = &topicv1.TopicMessage{Payload: make([]byte, size)}
	}
	pending, err := b.log.Begin(b.t.Context(), []commitlog.Append{{Partition: p.Address, Messages: list}})
	if err != nil {
		b.t.Fatal(err)
	}
	p.Begun(pending.Appended[0].Batch)
	if err := pending.Wait(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	p.Durable(pending.Appended[0].Base + int64(n))
}

// ownedMember attaches to a group with credits for everything.
func ownedMember(p *Partition, group string) (m *machine.Member) {
	p.Do(func(x *machine.Machine) {
		m, _ = x.Group(group).Attach("m", nil, machine.NewBudget(1<<30, 1<<40, true))
	})
	return m
}

// next returns the positions that a group gets.
func (b *partitionFixture) next(p *Partition, group string) (list []int64) {
	b.t.Helper()
	for {
		n := len(list)
		_, err := p.Next(b.t.Context(), group, 1000, func([]machine.Lost) {}, func(pieces []machine.Piece) {
			for _, x := range pieces {
				for i := x.From; i < x.To; i++ {
					list = append(list, x.Batch.Base+int64(i))
				}
			}
		})
		if err != nil {
			b.t.Fatal(err)
		}
		if len(list) == n {
			return list
		}
	}
}

func ack(p *Partition, group string, m *machine.Member, base, count int64) {
	p.Change(group, func() { m.Ack(machine.Positions{Base: base, Count: count}, nil) })
}

func floor(p *Partition, group string) (n int64) {
	p.Do(func(m *machine.Machine) { n = m.Group(group).Floor() })
	return n
}

// run runs the flusher until the test ends, or stop is called.
func (b *partitionFixture) run() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.cfg.Flusher.Run(ctx) }()
	return sync.OnceValue(func() error { cancel(); return <-done })
}

// While writes fail whoever waits keeps waiting; then all is stored, once, and what
// changed meanwhile too.
func TestFlusherTriesAgain(t *testing.T) {
	b := newPartitionFixture(t)
	p := b.open(1, "g")
	b.publish(p, 10, 1)
	m := ownedMember(p, "g")
	b.next(p, "g")
	stop := b.run()
	b.fail.Store(true)
	ack(p, "g", m, 0, 3)
	answered := make(chan error, 1)
	go func() { answered <- b.cfg.Flusher.Wait(t.Context(), "g") }()
	for b.plans.Load() < 3 {
		select {
		case err := <-answered:
			t.Fatal("answered though nothing is stored: ", err)
		case <-time.After(time.Millisecond):
		}
	}
	if !p.Unsaved("g") {
		t.Error("it counts as stored though the write failed")
	}
	ack(p, "g", m, 3, 2)
	b.fail.Store(false)
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if p.Unsaved("g") {
		t.Error("it does not count as stored")
	}
	if n := floor(b.again(p, groupOf("g")...), "g"); n != 5 {
		t.Errorf("position %d is stored, not 5", n)
	}
}

// HQ-D17: sixteen groups that acknowledge the same messages at once share their writes:
// there is no row that all of them write, and a caller waits for two writes at most.
func TestManyGroupsAcknowledgeAtOnce(t *testing.T) {
	const groups, rounds = 16, 20
	b := newPartitionFixture(t)
	var names []string
	for i := range groups {
		names = append(names, fmt.Sprint("g", i))
	}
	p := b.open(1, names...)
	b.publish(p, rounds, 1)
	var members []*machine.Member
	for _, n := range names {
		members = append(members, ownedMember(p, n))
		b.next(p, n)
	}
	for round := range int64(rounds) {
		for i, n := range names {
			ack(p, n, members[i], round, 1)
		}
		var answers []chan error
		for range names { // as Wait does, before the flusher runs
			done := make(chan error, 1)
			answers = append(answers, done)
			b.cfg.Flusher.waiting = append(b.cfg.Flusher.waiting, done)
		}
		plans, rows := b.plans.Load(), b.rows.Load()
		if err := b.cfg.Flusher.write(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := b.plans.Load() - plans; n != 1 {
			t.Errorf("%d writes for %d groups", n, groups)
		}
		if n := b.rows.Load() - rows; n > groups+1 { // the machine's own at most beside them
			t.Errorf("%d rows for %d groups", n, groups)
		}
		for _, a := range answers {
			select {
			case err := <-a:
				if err != nil {
					t.Fatal(err)
				}
			default:
				t.Fatal("a caller still waits")
			}
		}
	}
	again := b.again(p, groupOf(names...)...)
	for _, n := range names {
		if f := floor(again, n); f != rounds {
			t.Errorf("%s is at %d", n, f)
		}
	}
}

// Once a later owner has written, an earlier one stores nothing, and all who wait or come
// get the error.
func TestFlusherIsFenced(t *testing.T) {
	b := newPartitionFixture(t)
	p := b.open(1, "g", "h")
	b.publish(p, 10, 1)
	m, other := ownedMember(p, "g"), ownedMember(p, "h")
	b.next(p, "g")
	b.next(p, "h")

	later := &partitionFixture{Store: b.Store, t: t, cfg: b.cfg}
	later.cfg.Flusher = NewFlusher(b.Store, 2, time.Now, b.cfg.Logger)
	q := later.again(p, groupOf("g", "h")...)
	n := ownedMember(q, "g")
	later.next(q, "g")
	ack(q, "g", n, 0, 2)
	if err := later.cfg.Flusher.write(t.Context()); err != nil {
		t.Fatal(err)
	}

	stop := b.run()
	ack(p, "g", m, 0, 9)
	ack(p, "h", other, 0, 9)
	if err := b.cfg.Flusher.Wait(t.Context(), "g"); !errors.Is(err, storage.ErrFenced) {
		t.Error(err)
	}
	if err := stop(); !errors.Is(err, storage.ErrFenced) {
		t.Error("the flusher keeps running: ", err)
	}
	if err := b.cfg.Flusher.Wait(t.Context(), "g"); !errors.Is(err, storage.ErrFenced) {
		t.Error(err)
	}
	if err := b.cfg.Flusher.Admit(); !errors.Is(err, storage.ErrFenced) {
		t.Error(err)
	}
	r := later.again(p, groupOf("g", "h")...)
	if g, h := floor(r, "g"), floor(r, "h"); g != 2 || h != 0 {
		t.Errorf("positions %d and %d are stored, not 2 and 0", g, h)
	}
}

// A group whose row says that it lives, and whose cursor that it is dead, is to receive
// what it missed before anything is delivered: the process ended between the two writes.
func TestRevivedAtOpen(t *testing.T) {
	b := newPartitionFixture(t)
	p := b.open(1, "g", "h")
	p.Change("g", func() {
		p.machine.Group("g").Die()
		p.machine.Group("g").Release()
	})
	if err := b.cfg.Flusher.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.publish(p, 4, 1)
	q := b.again(p, groupOf("g", "h")...)
	q.Do(func(m *machine.Machine) {
		m.Reconcile(func(g *machine.GroupState) int64 { return g.Missed() })
		if n := m.Group("g").Stats().Pending; n != 4 {
			t.Errorf("%d pending, not 4", n)
		}
		if s := m.Status(2); len(s.Required) != 2 {
			t.Errorf("%v are to receive it", s.Required)
		}
	})
}

// What is removed is not written any more: not by who was about to.
func TestClosedIsNotWritten(t *testing.T) {
	b := newPartitionFixture(t)
	p := b.open(1, "g")
	b.publish(p, 4, 1)
	m := ownedMember(p, "g")
	b.next(p, "g")
	ack(p, "g", m, 0, 4)
	p.Close()
	if err := b.cfg.Flusher.write(t.Context()); err != nil || b.plans.Load() != 0 {
		t.Errorf("%d writes, %v", b.plans.Load(), err)
	}
}

// What is stored of acknowledgements goes with the messages, though nothing else happens.
func TestTrimIsStored(t *testing.T) {
	b := newPartitionFixture(t)
	p := b.open(1, "g")
	b.publish(p, 100, 1)
	m := ownedMember(p, "g")
	b.next(p, "g")
	for i := range int64(50) {
		ack(p, "g", m, 2*i+1, 1)
	}
	size := func() int {
		it, err := b.Get(t.Context(), p.First("g").Key, store.Strong)
		if err != nil {
			t.Fatal(err)
		}
		return it.Size()
	}
	if err := b.cfg.Flusher.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := size()
	p.Trimmed(100)
	if err := b.cfg.Flusher.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := size(); before < 150 || after > before-90 {
		t.Errorf("%d bytes before, %d after", before, after)
	}
}

// A row that the store does not take stops nobody else's: only whoever changed that partition
// hears of it, and it is stored once the row is one that can be.
func TestRefusedRowIsSetAside(t *testing.T) {
	b := newPartitionFixture(t)
	bad, good := b.open(1, "g"), b.open(2, "g")
	for _, p := range []*Partition{bad, good} {
		b.publish(p, 10, 1)
	}
	m, n := ownedMember(bad, "g"), ownedMember(good, "g")
	b.next(bad, "g")
	b.next(good, "g")
	b.invalid.Store("1/000")
	stop := b.run()
	ack(bad, "g", m, 0, 3)
	ack(good, "g", n, 0, 4)
	if err := b.cfg.Flusher.Wait(t.Context(), "g", good); err != nil {
		t.Error("the other partition: ", err)
	}
	if good.Unsaved("g") || !bad.Unsaved("g") {
		t.Errorf("unsaved: %v and %v", good.Unsaved("g"), bad.Unsaved("g"))
	}
	ack(bad, "g", m, 3, 1)
	if err := b.cfg.Flusher.Wait(t.Context(), "g", bad); !errors.Is(err, &refusal.Error{Reason: refusal.Overloaded}) {
		t.Errorf("%v, want %s", err, refusal.Overloaded)
	}
	b.invalid.Store("")
	ack(bad, "g", m, 4, 1)
	if err := b.cfg.Flusher.Wait(t.Context(), "g", bad); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := floor(b.again(bad, groupOf("g")...), "g"); n != 5 {
		t.Errorf("position %d is stored, not 5", n)
	}
}

// Who waits when the process ends and the last write fails hears that it is not stored.
func TestLastWriteFails(t *testing.T) {
	b := newPartitionFixture(t)
	p := b.open(1, "g")
	b.publish(p, 10, 1)
	m := ownedMember(p, "g")
	b.next(p, "g")
	stop := b.run()
	b.fail.Store(true)
	ack(p, "g", m, 0, 3)
	answered := make(chan error, 1)
	go func() { answered <- b.cfg.Flusher.Wait(t.Context(), "g", p) }()
	for b.plans.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	if err := stop(); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("%v, want %v", err, store.ErrUnavailable)
	}
	select {
	case err := <-answered:
		if err == nil {
			t.Error("answered as if it were stored")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for ever")
	}
	if err := b.cfg.Flusher.Wait(t.Context(), "g", p); err == nil {
		t.Error("later: answered as if it were stored")
	}
}

// What changes in a partition that is closed meanwhile is not said to be stored.
func TestClosedPartitionStoresNothing(t *testing.T) {
	b := newPartitionFixture(t)
	p := b.open(1, "g")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.cfg.Flusher.Run(ctx) }()
	p.Do(func(m *machine.Machine) {
		if err := m.Group("g").Pause(); err != nil {
			t.Error(err)
		}
	})
	p.Mark("g")
	p.Close()
	if err := b.cfg.Flusher.Wait(t.Context(), "g", p); !errors.Is(err, &refusal.Error{Reason: refusal.Overloaded}) {
		t.Error(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
