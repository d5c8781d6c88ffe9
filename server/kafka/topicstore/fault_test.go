package topicstore_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topicstore"
)

const (
	number     = 11
	partitions = 16
)

// fresh opens a slot's log and removes what an earlier test has left in it.
func fresh(t *testing.T, b *kafkatest.Broker, slot int) *topicstore.Log {
	t.Helper()
	l := open(t, b, slot, time.Now)
	if err := l.Delete(t.Context(), number); err != nil {
		t.Fatal(err)
	}
	return l
}

func create(t *testing.T, l *topicstore.Log, b *kafkatest.Broker) {
	t.Helper()
	if err := l.Create(t.Context(), orders(b)); err != nil {
		t.Fatal(err)
	}
}

func orders(b *kafkatest.Broker) commitlog.Topic {
	return commitlog.Topic{Number: number, Name: b.Name("orders"), Partitions: partitions, Retention: time.Hour}
}

// publish makes a publish of three partitions that can be repeated.
func publish(producer string, n int64) (list []commitlog.Append) {
	for part := range int32(3) {
		list = append(list, commitlog.Append{Partition: commitlog.Partition{Topic: number, Number: part},
			Messages: []*commitlog.Message{{Key: "k", Payload: fmt.Append(nil, producer, " ", n, " ", part)}},
			Producer: commitlog.Producer{ID: producer, Number: n}})
	}
	return list
}

// contents are the payloads of the topic, with how often each stands there.
func contents(t *testing.T, l *topicstore.Log) map[string]int {
	t.Helper()
	all := map[string]int{}
	for part := range int32(partitions) {
		p := commitlog.Partition{Topic: number, Number: part}
		start, end, err := l.Bounds(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		for at := start; at < end; {
			batches, err := l.Read(t.Context(), p, at, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if len(batches) == 0 {
				t.Fatalf("partition %d ends with %d, and nothing is at %d", part, end, at)
			}
			for _, b := range batches {
				for i := range b.Count() {
					m, err := b.Message(i)
					if err != nil {
						t.Fatal(err)
					}
					all[string(m.GetPayload())]++
				}
				at = b.End()
			}
		}
	}
	return all
}

// Whoever opens a slot's log has all that was acknowledged and what of producers was stored;
// the earlier owner can append nothing any more, and learns of it.
func TestTakeOver(t *testing.T) { each(t, testTakeOver) }

func testTakeOver(t *testing.T, b *kafkatest.Broker) {
	old := fresh(t, b, 3)
	create(t, old, b)
	other := open(t, b, 4, time.Now) // of another slot, which is not concerned
	stored := map[int64][]commitlog.Appended{}
	for n := range int64(5) {
		got, err := old.Append(t.Context(), publish("p", n))
		if err != nil {
			t.Fatal(err)
		}
		stored[n] = got
	}
	next := open(t, b, 3, time.Now)
	if _, err := old.Append(t.Context(), publish("p", 99)); !errors.Is(err, commitlog.ErrFenced) {
		t.Errorf("the earlier owner appends: %v", err)
	}
	<-old.Fenced()
	if err := old.Follow(t.Context(), func(commitlog.Partition, int64) {}); !errors.Is(err, commitlog.ErrFenced) {
		t.Errorf("the earlier owner hears %v", err)
	}
	create(t, next, b)
	for n, was := range stored {
		got, err := next.Append(t.Context(), publish("p", n))
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range got {
			if !a.Replayed || a.Base != was[i].Base || a.Batch != nil {
				t.Errorf("number %d again is %+v, was %+v", n, a, was[i])
			}
		}
	}
	if got, err := next.Append(t.Context(), publish("p", 99)); err != nil || got[0].Replayed {
		t.Errorf("what was refused is %+v, %v", got, err)
	}
	all := contents(t, next)
	for payload, n := range all {
		if n != 1 {
			t.Errorf("%q stands there %d times", payload, n)
		}
	}
	if len(all) != 3*6 {
		t.Errorf("%d messages", len(all))
	}
	select {
	case <-other.Fenced():
		t.Error("the owner of another slot is fenced")
	default:
	}
}

var errKilled = errors.New("killed")

// An owner that is killed at any step of a transaction leaves all of a publish or nothing of
// it, and its repetition is stored once.
func TestKilledAtEveryStep(t *testing.T) { each(t, testKilledAtEveryStep) }

func testKilledAtEveryStep(t *testing.T, b *kafkatest.Broker) {
	fresh(t, b, 3)
	n := int64(0)
	for _, step := range []string{"begin", "messages", "state", "end"} {
		t.Run(step, func(t *testing.T) {
			victim := open(t, b, 3, time.Now)
			var armed atomic.Bool
			victim.AtStep(func(at string) error {
				if armed.Load() && at == step {
					return errKilled
				}
				return nil
			})
			create(t, victim, b)
			before := publish("p", n)
			if _, err := victim.Append(t.Context(), before); err != nil {
				t.Fatal(err)
			}
			armed.Store(true)
			last := publish("p", n+1)
			if _, err := victim.Append(t.Context(), last); !errors.Is(err, commitlog.ErrFenced) {
				t.Fatalf("the killed owner answers %v", err)
			}
			next := open(t, b, 3, time.Now)
			create(t, next, b)
			there := 0
			for payload := range contents(t, next) {
				for _, a := range last {
					if string(a.Messages[0].GetPayload()) == payload {
						there++
					}
				}
			}
			committed := step == "end"
			if want := map[bool]int{true: 3, false: 0}[committed]; there != want {
				t.Errorf("%d of 3 messages are stored, not %d", there, want)
			}
			for _, list := range [][]commitlog.Append{before, last, last} {
				if _, err := next.Append(t.Context(), list); err != nil {
					t.Fatal(err)
				}
			}
			n += 2
			all := contents(t, next)
			for payload, times := range all {
				if times != 1 {
					t.Errorf("%q stands there %d times", payload, times)
				}
			}
			if len(all) != int(n)*3 {
				t.Errorf("%d messages after %d publishes of 3", len(all), n)
			}
		})
	}
}

// An owner that sleeps in the middle of a transaction while another takes over cannot end it.
func TestFrozenOwner(t *testing.T) { each(t, testFrozenOwner) }

func testFrozenOwner(t *testing.T, b *kafkatest.Broker) {
	for _, step := range []string{"begin", "messages", "state"} {
		t.Run(step, func(t *testing.T) {
			frozen := fresh(t, b, 3)
			var next *topicstore.Log
			var armed atomic.Bool
			frozen.AtStep(func(at string) error {
				if at == step && armed.CompareAndSwap(true, false) {
					next = open(t, b, 3, time.Now)
				}
				return nil
			})
			create(t, frozen, b)
			armed.Store(true)
			if _, err := frozen.Append(t.Context(), publish("p", 1)); !errors.Is(err, commitlog.ErrFenced) {
				t.Fatalf("the sleeper answers %v", err)
			}
			create(t, next, b)
			if all := contents(t, next); len(all) != 0 {
				t.Errorf("of the sleeper there is %v", all)
			}
			if got, err := next.Append(t.Context(), publish("p", 1)); err != nil || got[0].Replayed {
				t.Errorf("the repetition is %+v, %v", got, err)
			}
		})
	}
}
