package consume

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/storetest"
)

// newIdle makes an engine that is not run, with a clock of the test's.
func newIdle(t *testing.T, dead func(context.Context, DeadLetter) error) (e *Engine, now *time.Time) {
	t.Helper()
	now = new(time.Time)
	*now = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return *now }
	e, err := New(Config{
		Addr: "127.0.0.1:1", Group: "g", Consumer: "c", Topics: []string{kafka.ChatsCreated}, Store: storetest.NewMap(clock),
		Handle: func(context.Context, *kafka.Record) error { return nil }, WriteDeadLetter: dead, Clock: clock, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return e, now
}

// Partitions are handed over in several steps: those within 30 s are one rebalance. A group
// that never comes to rest is counted all the same.
func TestStepsOfARebalance(t *testing.T) {
	e, now := newIdle(t, func(context.Context, DeadLetter) error { return nil })
	dealt := func(after time.Duration, want int64) {
		t.Helper()
		*now = now.Add(after)
		e.onAssigned(nil)
		if got := e.Stats().Rebalances; got != want {
			t.Errorf("%d rebalances, not %d", got, want)
		}
	}
	dealt(0, 1)
	dealt(2*time.Second, 1)
	dealt(27*time.Second, 1)
	dealt(time.Second, 2) // 30 s after the first
	dealt(10*time.Minute, 3)
	for range 360 { // every 10 s for an hour
		*now = now.Add(10 * time.Second)
		e.onAssigned(nil)
	}
	if got := e.Stats().Rebalances; got < 100 {
		t.Errorf("%d rebalances within an hour without rest", got)
	}
}

// K-145: a dead letter that cannot be written is counted, and is no dead letter.
func TestUnwrittenDeadLetters(t *testing.T) {
	var broken error = errors.New("the topic takes nothing")
	e, _ := newIdle(t, func(context.Context, DeadLetter) error { return broken })
	r := &kafka.Record{Topic: kafka.ChatsCreated, Partition: 3, Offset: 7}
	for range 2 {
		if err := e.deadLetter(t.Context(), r, 1, Fail(Permanent, "x", nil)); classOf(err) != Authoritative {
			t.Fatal(err)
		}
	}
	broken = nil
	if err := e.deadLetter(t.Context(), r, 1, Fail(Permanent, "x", nil)); err != nil {
		t.Fatal(err)
	}
	if s := e.Stats(); s.Unwritten != 2 || s.DeadLettered != 1 {
		t.Errorf("%+v", s)
	}
}

// The age of the oldest record is known by topic.
func TestOldestByTopic(t *testing.T) {
	e, now := newIdle(t, func(context.Context, DeadLetter) error { return nil })
	wait := func(topic string, id int32, records int64, age time.Duration) {
		b := &e.partition(kafka.Partition{Topic: topic, ID: id}).backlog
		b.unfinished, b.oldest = records, now.Add(-age)
	}
	wait(kafka.MessagesPersisted, 0, 5, time.Minute)
	wait(kafka.MembershipsChanged, 0, 1, 20*time.Second)
	wait(kafka.MembershipsChanged, 1, 1, 30*time.Second)
	wait(kafka.ChatsCreated, 1, 0, time.Hour)
	b := &e.partition(kafka.Partition{Topic: kafka.MessagesPersisted, ID: 9}).backlog
	b.unfetched, b.since = 2, now.Add(-2*time.Minute)
	s := e.Stats()
	if s.Lag != 9 || s.Oldest != 2*time.Minute || s.OldestOf[kafka.MessagesPersisted] != 2*time.Minute ||
		s.OldestOf[kafka.MembershipsChanged] != 30*time.Second || s.OldestOf[kafka.ChatsCreated] != 0 {
		t.Errorf("%+v", s)
	}
}
