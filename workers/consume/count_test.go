package consume

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/storetest"
)

// newIdle makes an engine that is not run, with the test's clock.
func newIdle(t *testing.T, dead func(context.Context, DeadLetter) error) (e *Engine, now *time.Time) {
	t.Helper()
	now = new(time.Time)
	*now = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return *now }
	e, err := New(Config{
		Addr: "127.0.0.1:1", Group: "g", Consumer: "c", Topics: []string{kafka.ChatsCreated},
		Store:  storetest.NewMemory(clock),
		Handle: func(context.Context, *kafka.Record) error { return nil }, WriteDeadLetter: dead, Clock: clock,
		Logger: slog.New(slog.DiscardHandler),
	})
	testkit.Must(t, err)
	return e, now
}

// A rebalance assigns partitions in several steps: those within 30 s are one rebalance. A group
// that rebalances without end is still counted.
func TestStepsOfARebalance(t *testing.T) {
	e, now := newIdle(t, func(context.Context, DeadLetter) error { return nil })
	assigned := func(after time.Duration, want int64) {
		t.Helper()
		*now = now.Add(after)
		e.onAssigned(nil)
		if got := e.Stats().Rebalances; got != want {
			t.Errorf("%d rebalances, expected %d", got, want)
		}
	}
	assigned(0, 1)
	assigned(2*time.Second, 1)
	assigned(27*time.Second, 1)
	assigned(time.Second, 2) // 30 s after the first
	assigned(10*time.Minute, 3)
	for range 360 { // every 10 s for an hour
		*now = now.Add(10 * time.Second)
		e.onAssigned(nil)
	}
	if got := e.Stats().Rebalances; got < 100 {
		t.Errorf("%d rebalances within an hour without rest, expected at least 100", got)
	}
}

// K-145: a dead letter that cannot be written is counted, but not as a dead letter.
func TestUnwrittenDeadLetters(t *testing.T) {
	broken := errors.New("the topic is unavailable")
	e, _ := newIdle(t, func(context.Context, DeadLetter) error { return broken })
	r := &kafka.Record{Topic: kafka.ChatsCreated, Partition: 3, Offset: 7}
	for range 2 {
		if err := e.deadLetter(t.Context(), r, 1, Fail(Permanent, "x", nil)); ClassOf(err) != Authoritative {
			t.Fatalf("got error %v, want one that is retried", err)
		}
	}
	broken = nil
	testkit.Must(t, e.deadLetter(t.Context(), r, 1, Fail(Permanent, "x", nil)))
	if s := e.Stats(); s.Unwritten != 2 || s.DeadLettered != 1 {
		t.Errorf("%+v, expected 2 unwritten and 1 dead letter", s)
	}
}

// The age of the oldest record is reported by topic.
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
		t.Errorf("%+v, expected a lag of 9, two minutes old, with 2 min for messages and 30 s for memberships", s)
	}
}
