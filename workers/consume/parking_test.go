package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/workers/consume/parked"
)

var nopLogger = slog.New(slog.DiscardHandler)

// shelf has the dead letters of a group as their topic would: in order, and some of them twice.
type shelf struct {
	mu   sync.Mutex
	list map[string][]DeadLetter // by key
}

func (s *shelf) write(_ context.Context, d DeadLetter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = map[string][]DeadLetter{}
	}
	key := string(d.Record.Key)
	s.list[key] = append(s.list[key], d)
	return nil
}

// of returns the dead letters of a key, each once.
func (s *shelf) of(key string) (out []DeadLetter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for _, d := range s.list[key] {
		if !seen[d.ID()] {
			seen[d.ID()] = true
			out = append(out, d)
		}
	}
	return out
}

// aggregates makes an engine that keeps a ledger.
func (r *fixture) aggregates(l *ledger, s *shelf, change func(*Config)) *Engine {
	r.t.Helper()
	return r.engine(func(c *Config) {
		c.Handle, c.Aggregate, c.WriteDeadLetter = nil, l.handle, s.write
		if change != nil {
			change(c)
		}
	})
}

// redrive works on the dead letters of a key like an operator, and releases it if there is no
// more.
func (r *fixture) redrive(l *ledger, s *shelf, key string) (released bool) {
	r.t.Helper()
	rows, err := parked.List(r.t.Context(), r.store, parked.Select{Group: r.group, Topic: topic, Key: key})
	testkit.Must(r.t, err)
	if len(rows) != 1 {
		r.t.Fatalf("%s is parked %d times, expected once", key, len(rows))
	}
	list := s.of(key)
	for _, d := range list {
		ctx := WithRedrive(r.t.Context())
		testkit.Must(r.t, AggregateHandler(l.handle).One(l.store)(ctx, d.Record))
	}
	if len(list) == 0 || !parked.IsLast(&rows[0], list[len(list)-1].Record) {
		return false // a record was parked and its dead letter is not written yet
	}
	released, err = parked.Release(r.t.Context(), r.store, rows[0])
	testkit.Must(r.t, err)
	return released
}

// inPartition publishes records of any keys to one partition.
func (r *fixture) inPartition(partition int32, values ...string) []*kafka.Record {
	r.t.Helper()
	var list []*kafka.Record
	for _, v := range values {
		key, _, _ := strings.Cut(v, " ")
		list = append(list, &kafka.Record{Topic: topic, Partition: partition, Key: []byte(key), Value: []byte(v)})
	}
	r.publishRecords(list)
	return list
}

// settled waits until all of a ledger's keys are where they are expected.
func (r *fixture) settled(l *ledger, want map[string]int64) {
	r.t.Helper()
	testkit.Eventually(r.t, fmt.Sprintf("the ledger %v", want), func() bool {
		for key, n := range want {
			if l.last(r.t, key) < n {
				return false
			}
		}
		return true
	})
	for key, n := range want {
		testkit.Must(r.t, l.check(r.t.Context(), key, n))
	}
}

// One aggregate fails: the others of its batch and of its partition are committed; its effect up
// to the failure is there, and nothing behind it. The rest of it becomes dead letters, in order,
// with its key, and so does what comes later, until it is released (EV23, EV24, EV25, EV32, EV36,
// EV37, EV38).
func TestFailureStaysWithItsAggregate(t *testing.T) {
	alongside(t)
	each(t, func(t *testing.T, r *fixture) {
		l, s := newLedger(t, r.store), &shelf{}
		var sick atomic.Bool
		sick.Store(true)
		l.fail = func(_ context.Context, key string, n int64) error {
			if sick.Load() && key == "a" && n == 3 {
				return Fail(Permanent, "bad schema", nil)
			}
			return nil
		}
		sent := r.inPartition(5, "a ok 1", "b ok 1", "a ok 2", "a ok 3", "c ok 1", "b ok 2", "a ok 4", "a ok 5", "c ok 2")
		e := r.aggregates(l, s, nil)
		stop := r.run(e)
		defer stop()
		r.settled(l, map[string]int64{"a": 2, "b": 2, "c": 2})
		deadLetters := func(n int) {
			t.Helper()
			testkit.Eventually(t, fmt.Sprintf("%d dead letters", n), func() bool { return len(s.of("a")) == n })
		}
		deadLetters(3)
		// The group has moved on.
		testkit.Eventually(t, "the commit", func() bool { return r.committed(5) > sent[8].Offset })
		r.inPartition(5, "a ok 6", "b ok 3")
		r.settled(l, map[string]int64{"a": 2, "b": 3})
		deadLetters(4)
		behind := fmt.Sprintf("permanent: waits behind %s/5/%d", topic, sent[3].Offset)
		for i, want := range []string{"permanent: bad schema", behind, behind, behind} {
			if d := s.of("a")[i]; numberOf(d.Record) != int64(3+i) || d.Reason != want || d.Attempts != 1 || d.Group != r.group {
				t.Errorf("dead letter %d is %s: %s, expected %d: %s", i, d.Record.Value, d.Reason, 3+i, want)
			}
		}
		st := e.Stats()
		if st.DeadLettered != 4 || st.Parked != 3 || st.ParkedKeys != 1 || st.ParkedRecords != 4 || st.Skipped != 0 {
			t.Errorf("%+v, expected 4 dead letters, 3 of them parked, of one key", st)
		}
		sick.Store(false)
		if !r.redrive(l, s, "a") {
			t.Fatal("the key is not released, expected it to be")
		}
		r.inPartition(5, "a ok 7", "a ok 8", "c ok 3")
		r.settled(l, map[string]int64{"a": 8, "b": 3, "c": 3})
		if n := len(s.of("a")) + len(s.of("b")) + len(s.of("c")); n != 4 {
			t.Errorf("%d dead letters, expected no more than 4", n)
		}
		if st := e.Stats(); st.ParkedKeys != 0 {
			t.Errorf("%d keys are parked, expected none", st.ParkedKeys)
		}
	})
}

// While one aggregate waits for the store, offsets are committed up to its record and no
// further, though others behind it are finished. None of them comes twice (EV20, EV26, EV31).
func TestCommitWaitsForAnAggregate(t *testing.T) {
	alongside(t)
	each(t, func(t *testing.T, r *fixture) {
		l, s := newLedger(t, r.store), &shelf{}
		var away atomic.Bool
		away.Store(true)
		l.fail = func(_ context.Context, key string, n int64) error {
			if away.Load() && key == "a" && n == 2 {
				return Fail(Authoritative, "unavailable", nil)
			}
			return nil
		}
		sent := r.inPartition(5, "b ok 1", "a ok 1", "a ok 2", "b ok 2", "a ok 3", "b ok 3")
		e := r.aggregates(l, s, nil)
		stop := r.run(e)
		defer stop()
		r.settled(l, map[string]int64{"a": 1, "b": 3})
		testkit.Eventually(t, "pauses", func() bool { return e.Stats().Pauses > 1 })
		if at := r.committed(5); at > sent[2].Offset {
			t.Errorf("offset %d is committed, expected at most %d", at, sent[2].Offset)
		}
		away.Store(false)
		r.settled(l, map[string]int64{"a": 3, "b": 3})
		testkit.Eventually(t, "the commit", func() bool { return r.committed(5) > sent[5].Offset })
		if st := e.Stats(); st.DeadLettered+st.Skipped != 0 || st.Handled != 6 {
			t.Errorf("%+v, expected 6 handled records and nothing else", st)
		}
	})
}

// What is parked of a partition is bounded: beyond the bounds the partition waits, and resumes
// when there is room. A key that is parked when its owner ends stays parked.
func TestParkedIsBounded(t *testing.T) {
	alongside(t)
	for name, bounds := range map[string]parked.Bounds{
		"keys": {Keys: 1}, "records": {Records: 3}, "bytes": {Bytes: 3 * int64(len("a")+len("a ok 1"))},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, r *fixture) { parkedIsBounded(t, r, bounds) })
		})
	}
}

func parkedIsBounded(t *testing.T, r *fixture, bounds parked.Bounds) {
	l, s := newLedger(t, r.store), &shelf{}
	l.fail = func(ctx context.Context, key string, n int64) error {
		if !Redriven(ctx) && (n == 2 || key == "b") {
			return event.ErrSchema
		}
		return nil
	}
	sent := r.inPartition(5, "a ok 1", "a ok 2", "a ok 3", "a ok 4", "b ok 1")
	start := func() (*Engine, func()) {
		e := r.aggregates(l, s, func(c *Config) { c.Parked = bounds })
		return e, r.run(e)
	}
	// The keys are worked on at the same time: either may find the last room.
	e, stop := start()
	testkit.Eventually(t, "the partition waits", func() bool { return e.Stats().Pauses > 0 })
	stop()
	first := len(s.of("a")) + len(s.of("b"))
	e, stop = start()
	testkit.Eventually(t, "the next owner waits, too", func() bool { return e.Stats().Pauses > 0 })
	n := len(s.of("a")) + len(s.of("b"))
	if at := r.committed(5); n != first || n == 0 || n > 3 || at > sent[4].Offset {
		t.Errorf("%d dead letters, then %d, and %d is committed; expected the same 1 to 3, and up to %d", first, n, at,
			sent[4].Offset)
	}
	rows, err := parked.List(t.Context(), r.store, parked.Select{Group: r.group})
	testkit.Must(t, err)
	if len(rows) > bounds.WithDefaults().Keys {
		t.Errorf("%d keys are parked, expected at most %d", len(rows), bounds.Keys)
	}
	testkit.Eventually(t, "all records", func() bool { // each release makes room
		rows, err := parked.List(t.Context(), r.store, parked.Select{Group: r.group})
		testkit.Must(t, err)
		for _, row := range rows {
			r.redrive(l, s, string(row.Key))
		}
		return l.last(t, "a") == 4 && l.last(t, "b") == 1
	})
	testkit.Eventually(t, "the commit", func() bool { return r.committed(5) > sent[4].Offset })
	stop()
	testkit.Must(t, l.check(t.Context(), "a", 4))
	testkit.Must(t, l.check(t.Context(), "b", 1))
}

// While a key is held for its release its records wait, and no row counts them. They resume when
// the key is released, or when the hold is over.
func TestHeldKeyWaits(t *testing.T) {
	alongside(t)
	each(t, func(t *testing.T, r *fixture) {
		l, s := newLedger(t, r.store), &shelf{}
		l.fail = func(ctx context.Context, _ string, n int64) error {
			if !Redriven(ctx) && n == 1 {
				return event.ErrSchema
			}
			return nil
		}
		e := r.aggregates(l, s, nil)
		stop := r.run(e)
		defer stop()
		r.inPartition(5, "a ok 1", "a ok 2")
		testkit.Eventually(t, "two letters", func() bool { return len(s.of("a")) == 2 })
		key := parked.Select{Group: r.group, Topic: topic, Key: "a"}
		rows, err := parked.List(t.Context(), r.store, key)
		testkit.Must(t, err)
		held, err := parked.Hold(t.Context(), r.store, rows[0], time.Now().Add(time.Hour))
		testkit.Must(t, err)
		r.inPartition(5, "a ok 3")
		testkit.Eventually(t, "a pause", func() bool { return e.Stats().Pauses > 0 })
		rows, err = parked.List(t.Context(), r.store, key)
		if err != nil || rows[0].Records != 2 || rows[0].Last != held.Last {
			t.Fatalf("%+v, %v; expected two records as before", rows, err)
		}
		if !r.redrive(l, s, "a") {
			t.Fatal("the key is not released, expected it to be")
		}
		r.settled(l, map[string]int64{"a": 3})
	})
}

// Only the owner of a partition parks its keys: one that has lost it could park a record that
// the next owner has handled, or is about to.
func TestOnlyTheOwnerParks(t *testing.T) {
	alongside(t)
	ofMembers(t, func(t *testing.T, r *fixture) {
		l, s := newLedger(t, r.store), &shelf{}
		started, resume := make(chan struct{}, 10), make(chan struct{})
		l.fail = func(ctx context.Context, _ string, n int64) error {
			if n == 2 && ctx.Value(firstMember{}) != nil {
				started <- struct{}{}
				<-resume
				return event.ErrSchema
			}
			return nil
		}
		first := r.aggregates(l, s, func(c *Config) {
			c.Consumer, c.Expiry = "first", 6*time.Second
			c.Aggregate = func(ctx context.Context, list []*kafka.Record) (Effect, error) {
				return l.handle(context.WithValue(ctx, firstMember{}, true), list)
			}
		})
		stop := r.run(first)
		defer stop()
		r.inPartition(5, "a ok 1", "a ok 2", "a ok 3")
		<-started
		r.expel(r.group)
		// A process of its own, whose suspects do not wait for the first one's.
		second := r.aggregates(l, s, func(c *Config) {
			c.Consumer, c.Expiry, c.Isolation = "second", 6*time.Second, &Isolation{}
		})
		stopSecond := r.run(second)
		defer stopSecond()
		r.settled(l, map[string]int64{"a": 3})
		close(resume)
		r.inPartition(5, "a ok 4")
		r.settled(l, map[string]int64{"a": 4})
		stopSecond()
		r.inPartition(5, "a ok 5") // for the first one, a member again
		r.settled(l, map[string]int64{"a": 5})
		rows, err := parked.List(t.Context(), r.store, parked.Select{})
		if len(rows) > 0 || err != nil || len(s.of("a")) > 0 {
			t.Errorf("%+v is parked, %v, with %d dead letters; expected nothing", rows, err, len(s.of("a")))
		}
	})
}

type firstMember struct{}

// A dead letter cannot be written after its key was parked, and the process ends: the record
// comes again and is not tried again, its dead letter says why it failed, and the row counts it
// once (EV39).
func TestDeadLetterAfterTheRow(t *testing.T) {
	alongside(t)
	each(t, func(t *testing.T, r *fixture) {
		l, s := newLedger(t, r.store), &shelf{}
		var tries atomic.Int64
		l.fail = func(_ context.Context, _ string, n int64) error {
			if n != 2 {
				return nil
			}
			tries.Add(1)
			return Fail(Permanent, "bad schema", nil)
		}
		r.inPartition(5, "a ok 1", "a ok 2", "a ok 3")
		e := r.aggregates(l, s, func(c *Config) {
			c.WriteDeadLetter = func(context.Context, DeadLetter) error { return errors.New("Kafka is away") }
		})
		stop := r.run(e)
		testkit.Eventually(t, "a letter that cannot be written", func() bool { return e.Stats().Unwritten > 0 })
		stop()
		before := tries.Load()
		stop = r.run(r.aggregates(l, s, nil))
		defer stop()
		testkit.Eventually(t, "both letters", func() bool { return len(s.of("a")) == 2 })
		list := s.of("a")
		if list[0].Reason != "permanent: bad schema" || numberOf(list[0].Record) != 2 || numberOf(list[1].Record) != 3 ||
			tries.Load() != before {
			t.Errorf("%d more tries, letters %s: %s and %s; expected none, and record 2 with its reason before 3",
				tries.Load()-before, list[0].Record.Value, list[0].Reason, list[1].Record.Value)
		}
		rows, err := parked.List(t.Context(), r.store, parked.Select{})
		if err != nil || len(rows) != 1 || rows[0].Records != 2 {
			t.Errorf("%+v, %v; expected one key with 2 records", rows, err)
		}
	})
}

// Records without a key belong to no aggregate: one that fails has no followers.
func TestRecordsWithoutAKeyAreNotParked(t *testing.T) {
	alongside(t)
	r := newFixture(t, kafkatest.InProcess(t))
	s := &shelf{}
	var handled atomic.Int64
	e := r.engine(func(c *Config) {
		c.Handle, c.WriteDeadLetter = nil, s.write
		c.Aggregate = func(_ context.Context, records []*kafka.Record) (Effect, error) {
			for i, rec := range records {
				if string(rec.Value) == "bad" {
					return Effect{Finished: i}, event.ErrSchema
				}
				handled.Add(1)
			}
			return Effect{Finished: len(records)}, nil
		}
	})
	var list []*kafka.Record
	for _, v := range []string{"ok", "bad", "ok", "ok"} {
		list = append(list, &kafka.Record{Topic: topic, Partition: 5, Value: []byte(v)})
	}
	r.publishRecords(list)
	r.until(e, "all records", func() bool { return handled.Load() == 3 && len(s.of("")) == 1 })
	if rows, err := parked.List(t.Context(), r.store, parked.Select{}); len(rows) > 0 || err != nil {
		t.Errorf("%+v is parked, %v; expected nothing", rows, err)
	}
}

// A handler takes some types of events: records of the others are finished unread, and never
// parked. What a header does not name is for the handler (EV10).
func TestTypesThatAreLeftOut(t *testing.T) {
	alongside(t)
	r := newFixture(t, kafkatest.InProcess(t))
	s := &shelf{}
	var mu sync.Mutex
	var seen []string
	e := r.engine(func(c *Config) {
		c.Handle, c.WriteDeadLetter, c.Types = nil, s.write, []string{event.TypeMessagePersisted}
		c.Aggregate = func(_ context.Context, records []*kafka.Record) (Effect, error) {
			mu.Lock()
			defer mu.Unlock()
			for i, rec := range records {
				if string(rec.Value) == "4" {
					return Effect{Finished: i}, event.ErrSchema
				}
				seen = append(seen, string(rec.Value))
			}
			return Effect{Finished: len(records)}, nil
		}
	})
	var list []*kafka.Record
	for i, name := range []string{event.TypeMessagePersisted, event.TypeChatCreated, "", "OfAnotherTeam",
		event.TypeMessagePersisted, event.TypeChatUpdated, event.TypeMessagePersisted} {
		rec := &kafka.Record{Topic: topic, Partition: 5, Key: []byte("a"), Value: fmt.Append(nil, i)}
		if name != "" {
			rec.Headers = []kafka.Header{{Key: kafka.HeaderEventType, Value: []byte(name)}}
		}
		list = append(list, rec)
	}
	r.publishRecords(list)
	r.until(e, "all records", func() bool { return len(s.of("a")) == 2 && e.Stats().Commits > 0 })
	if st := e.Stats(); !slices.Equal(seen, []string{"0", "2", "3"}) || st.Ignored != 2 || st.DeadLettered != 2 {
		t.Errorf("handled %v, %+v; expected 0, 2, 3, two ignored and two dead letters", seen, st)
	}
}
