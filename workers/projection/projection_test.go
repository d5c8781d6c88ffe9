package projection_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/projection/chatactivity"
)

// EV21, EV72: each batch comes three times, in any order, to several processes at once, over a
// store that fails: the projection is what the events say.
func TestEachEventCountsOnce(t *testing.T) {
	f := newFixture(t, 5)
	f.talk(300)
	testkit.Must(t, f.set(f.store, nil).Prepare(t.Context()))
	testkit.Must(t, f.set(f.store, nil).RebuildOnce(t.Context()))
	f.talk(300)
	batches := f.batches(7)
	batches = slices.Concat(batches, batches, batches)
	var all sync.WaitGroup
	for process := range 4 {
		st := faulty.New(f.store, faulty.Options{Policy: faulty.Random(uint64(process), faulty.Rates{
			Unavailable: 0.02, Conflict: 0.05, Applied: 0.05, NotApplied: 0.05})})
		s := f.set(st, func(c *projection.Config) { c.Process = fmt.Sprint("p", process) })
		mine := slices.Clone(batches)
		rand.New(rand.NewPCG(7, uint64(process))).Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
		all.Go(func() { handle(t, s, mine) })
	}
	all.Wait()
	f.check()
}

// life is what the processes of an installation do, one after the other: they consume
// batches, rebuild the projection in the middle, and consume the rest. at survives a process,
// as committed offsets do.
func (f *fixture) life(st store.Store, batches [][]*kafka.Record, at *int) error {
	s, ctx := f.set(st, nil), f.t.Context()
	if err := s.Prepare(ctx); err != nil {
		return err
	}
	if err := s.RebuildOnce(ctx); err != nil {
		return err
	}
	operate := f.operate()
	operate.Store = st
	for ; *at < len(batches); *at++ {
		if _, err := s.Handle(ctx, batches[*at]); err != nil {
			return err
		}
		switch *at {
		case len(batches) / 3:
			_, err := operate.Do(ctx, chatactivity.Name, projection.Change{Action: projection.Start}, "ada", true)
			if err != nil && !errors.Is(err, projection.ErrRunning) {
				return err
			}
		case len(batches) / 2:
			if err := s.RebuildOnce(ctx); err != nil {
				return err
			}
		}
	}
	return s.RebuildOnce(ctx)
}

// A process is killed before and after each call of the store, through consuming and a
// rebuild, and another continues: no event is lost, none counts twice.
func TestKillAtEveryStep(t *testing.T) {
	f := newFixture(t, 3)
	f.talk(40)
	batches := f.batches(3)
	begin, ok := f.store.(*storetest.Memory)
	if !ok {
		t.Skip("not run: only the store in memory can be copied")
	}
	kills := 0
	for _, when := range []faulty.When{faulty.Before, faulty.After} {
		for call := 1; ; call++ {
			f.store = begin.Clone()
			dying := faulty.New(f.store, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
				switch {
				case c.Number < call:
					return faulty.Fault{}
				case c.Number == call:
					return faulty.Fault{When: when, Err: store.ErrClosed}
				}
				return faulty.Fault{When: faulty.Before, Err: store.ErrClosed}
			}})
			at := 0
			if err := f.life(dying, batches, &at); err == nil {
				break // there are no more calls
			}
			kills++
			testkit.Must(t, f.life(f.store, batches, &at))
			f.check()
			if b := f.status().Builds; b.Next != 0 || b.Live < 2 && at > len(batches)/2 {
				t.Fatalf("kill %d: the builds are %+v", kills, b)
			}
		}
	}
	if kills < 100 {
		t.Errorf("only %d kills", kills)
	}
}

// EV72: a projection is made again beside the live one while messages come, from all events;
// then it takes its place at once, and the rows of the old one go.
func TestRebuildWhileMessagesCome(t *testing.T) {
	f := newFixture(t, 20)
	f.talk(200)
	s := f.set(f.store, nil)
	testkit.Must(t, s.Prepare(t.Context()))
	if _, err := chatactivity.Days(t.Context(), f.store, f.ids[0], f.clock.now(), f.clock.now()); !errors.Is(err,
		projection.ErrNotBuilt) {
		t.Fatalf("a projection that is not built says: %v", err)
	}
	testkit.Must(t, s.RebuildOnce(t.Context()))
	f.check()
	first := f.status()
	testkit.Equal(t, "events at the start", first.Rebuild.Total, int64(len(f.events())))
	testkit.Equal(t, "events done", first.Rebuild.Done, first.Rebuild.Total)

	f.do(projection.Start)
	var rebuilding sync.WaitGroup
	rebuilding.Go(func() {
		if err := f.set(f.store, nil).RebuildOnce(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for range 20 {
		f.chat() // some that the rebuild may not find
		f.talk(10)
		handle(t, s, f.batches(50))
	}
	rebuilding.Wait()
	f.check()
	now := f.status()
	testkit.Equal(t, "the live build", now.Builds.Live, first.Builds.Live+1)
	testkit.Equal(t, "rebuilds under way", now.Builds.Next, int64(0))
	testkit.Equal(t, "builds with rows", fmt.Sprint(f.builds()), "[1 2]")

	f.clock.add(6 * time.Minute)
	testkit.Must(t, s.RebuildOnce(t.Context()))
	testkit.Equal(t, "builds with rows", fmt.Sprint(f.builds()), "[2]")
	testkit.Equal(t, "builds to remove", len(f.status().Builds.Dropped), 0)
	f.check()
}

// A rebuild waits, resumes in another process where it stopped, and is canceled; what comes
// meanwhile is in both builds.
func TestRebuildIsPausedResumedAndCanceled(t *testing.T) {
	f := newFixture(t, 120)
	f.talk(240)
	s := f.set(f.store, nil)
	testkit.Must(t, s.Prepare(t.Context()))
	testkit.Must(t, s.RebuildOnce(t.Context()))

	f.do(projection.Start)
	pages := 0
	pausing := faulty.New(f.store, faulty.Options{Policy: faulty.On(func(c faulty.Call) faulty.Fault {
		if pages++; pages == 3 { // the first counts the events
			f.clock.add(time.Minute) // it is time to look
			f.do(projection.Pause)
		}
		return faulty.Fault{}
	}, faulty.Scan)})
	testkit.Must(t, f.set(pausing, nil).RebuildOnce(t.Context()))
	paused := f.status()
	if !paused.Builds.Paused || paused.Builds.Next != 2 || paused.Rebuild.Done == 0 ||
		paused.Rebuild.Done >= paused.Rebuild.Total || paused.Rebuild.Holder != "" {
		t.Fatalf("%+v", paused)
	}
	testkit.Must(t, s.RebuildOnce(t.Context()))
	testkit.Equal(t, "it does not continue", f.status().Rebuild.Done, paused.Rebuild.Done)
	f.talk(60)
	handle(t, s, f.batches(9))
	f.check()

	scans := 0
	counting := faulty.New(f.store, faulty.Options{Policy: faulty.On(func(faulty.Call) faulty.Fault {
		scans++
		return faulty.Fault{}
	}, faulty.Scan)})
	f.do(projection.Resume)
	testkit.Must(t, f.set(counting, nil).RebuildOnce(t.Context()))
	testkit.Equal(t, "pages that were read again or for the first time", scans, 1)
	testkit.Equal(t, "the live build", f.status().Builds.Live, int64(2))
	f.check()

	f.do(projection.Start)
	f.do(projection.Cancel)
	_, err := f.operate().Do(t.Context(), chatactivity.Name, projection.Change{Action: projection.Resume}, "ada", true)
	if !errors.Is(err, projection.ErrNothing) {
		t.Fatal(err)
	}
	f.talk(10)
	handle(t, s, f.batches(9))
	f.check()
	f.clock.add(6 * time.Minute)
	testkit.Must(t, s.RebuildOnce(t.Context()))
	testkit.Equal(t, "builds with rows", fmt.Sprint(f.builds()), "[2]")
}

// Code of a newer version makes its own build, beside one that it does not touch; an older
// process consumes nothing from then on, since it cannot write to it.
func TestVersions(t *testing.T) {
	f := newFixture(t, 3)
	f.talk(30)
	old := f.set(f.store, nil)
	testkit.Must(t, old.Prepare(t.Context()))
	testkit.Must(t, old.RebuildOnce(t.Context()))
	newer := f.set(f.store, func(c *projection.Config) { c.Definitions[0].Version = 2 })
	testkit.Must(t, newer.Prepare(t.Context()))
	if b := f.status().Builds; b.Next != 2 || b.NextVersion != 2 || b.Live != 1 {
		t.Fatalf("%+v", b)
	}
	batches := f.batches(5)
	for range 2 { // the newer build is made, and then live
		n, err := old.Handle(t.Context(), batches[0])
		if n != 0 || consume.ClassOf(err) != consume.Authoritative {
			t.Fatalf("an older process took %d records: %v", n, err)
		}
		testkit.Must(t, newer.RebuildOnce(t.Context()))
	}
	f.talk(30)
	handle(t, newer, f.batches(5))
	f.check()
	if b := f.status().Builds; b.Next != 0 || b.Live != 2 || b.LiveVersion != 2 {
		t.Fatalf("%+v", b)
	}
	_, err := f.operate().Do(t.Context(), "nothing", projection.Change{Action: projection.Start}, "ada", true)
	if !errors.Is(err, projection.ErrUnknown) {
		t.Fatal(err)
	}
	restored := f.set(f.store, func(c *projection.Config) { c.Definitions[0].Version, c.History = 2, store.Line("h") })
	testkit.Must(t, restored.RebuildOnce(t.Context()))
	testkit.Equal(t, "the build after a restore", f.status().Builds.Live, int64(3))
	f.check()
}

// EV52: an event that cannot be read stops its chat, in both ways into a build, and no other;
// once it is repaired, the next record brings all that follows.
func TestEventThatCannotBeRead(t *testing.T) {
	f := newFixture(t, 3)
	f.talk(60)
	s := f.set(f.store, nil)
	testkit.Must(t, s.Prepare(t.Context()))
	testkit.Must(t, s.RebuildOnce(t.Context()))
	last := f.talkTo(f.ids[0], 3)
	repair := f.damage(f.ids[0], last-1)
	record := &kafka.Record{Topic: kafka.MessagesPersisted, Key: []byte(f.ids[0])}
	n, failure := s.Handle(t.Context(), []*kafka.Record{record})
	if n != 0 || consume.ClassOf(failure) != consume.Permanent {
		t.Fatal(n, failure)
	}
	f.do(projection.Start)
	testkit.Must(t, s.RebuildOnce(t.Context()))
	f.blocked("a rebuild", 1, f.ids[0])
	repair()
	handle(t, s, [][]*kafka.Record{{record}})
	f.check()
	f.resume(false)
	testkit.Must(t, s.RebuildOnce(t.Context()))
	testkit.Equal(t, "the live build", f.status().Builds.Live, int64(2))
	f.check()
	odd := &kafka.Record{Topic: kafka.MessagesPersisted, Key: []byte("\x00")}
	if _, err := s.Handle(t.Context(), []*kafka.Record{odd}); consume.ClassOf(err) != consume.Ignored {
		t.Fatal(err)
	}
}

// talkTo sends messages to one chat, and returns the version of the last.
func (f *fixture) talkTo(id string, messages int) int64 {
	f.t.Helper()
	for n := range messages {
		f.send(id, "alice", n)
	}
	it, err := f.store.Get(f.t.Context(), table.HeadKey(id), store.Strong)
	testkit.Must(f.t, err)
	return table.HeadFrom(id, it).Version
}
