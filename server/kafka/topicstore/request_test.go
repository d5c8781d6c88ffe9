package topicstore_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topiclog"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
)

// request is a request for partitions 0 and 1, of which partition 2 remembers the number.
func request(n int64, texts ...string) (list []commitlog.Append) {
	var messages []*commitlog.Message
	for _, text := range texts {
		messages = append(messages, &commitlog.Message{Key: "k", Payload: []byte(text)})
	}
	a := commitlog.Append{Producer: commitlog.Producer{ID: "p", Number: n}, Request: commitlog.HashOf(messages)}
	for part := range int32(3) {
		a.Partition = commitlog.Partition{Topic: number, Number: part}
		if a.Messages = nil; int(part) < len(messages) {
			a.Messages = messages[part : part+1]
		}
		list = append(list, a)
	}
	return list
}

// elsewhere is another request under a number, with a message for partition 2 only.
func elsewhere(n int64) []commitlog.Append {
	list := request(n, "x", "y", "another")[2:]
	list[0].Request = commitlog.HashOf(list[0].Messages)
	return list
}

// A process that takes a slot over refuses another request under a number, in any partitions, and
// an owner that is killed at any step leaves all of a request or nothing of it.
func TestRequestsAfterATakeOver(t *testing.T) { each(t, testRequestsAfterATakeOver) }

func testRequestsAfterATakeOver(t *testing.T, b *kafkatest.Broker) {
	fresh(t, b, 3)
	for i, step := range []string{"begin", "messages", "state", "end", ""} {
		n := int64(i + 1)
		victim := open(t, b, 3, time.Now)
		var armed atomic.Bool
		victim.AtStep(func(at string) error {
			if armed.Load() && at == step {
				return errKilled
			}
			return nil
		})
		create(t, victim, b)
		armed.Store(true)
		if _, err := victim.Append(t.Context(), request(n, "a", "b")); errors.Is(err, commitlog.ErrFenced) != (step != "") {
			t.Fatalf("killed at %q: %v", step, err)
		}
		next := open(t, b, 3, time.Now)
		create(t, next, b)
		stored := step == "end" || step == ""
		got, err := next.Append(t.Context(), request(n, "a", "b"))
		if err != nil {
			t.Fatal(err)
		}
		for part, a := range got {
			if a.Replayed != stored || a.Same != stored {
				t.Errorf("killed at %q: part %d of the repetition is %+v", step, part, a)
			}
		}
		for what, list := range map[string][]commitlog.Append{
			"another": request(n, "a", "c"), "one less": request(n, "a"), "elsewhere": elsewhere(n),
		} {
			if got, err := next.Append(t.Context(), list); !errors.Is(err, commitlog.ErrProducerReuse) {
				t.Errorf("killed at %q, %s: %+v, %v", step, what, got, err)
			}
		}
		if all := contents(t, next); all["a"] != i+1 || all["b"] != i+1 || len(all) != 2 {
			t.Errorf("killed at %q: %v are stored", step, all)
		}
	}
}

// Requests that share a transaction are compared with each other.
func TestRequestsInOneTransaction(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	l := open(t, b, 3, time.Now)
	begun, release := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	l.AtStep(func(step string) error {
		if step == "begin" && armed.CompareAndSwap(true, false) {
			close(begun)
			<-release
		}
		return nil
	})
	create(t, l, b)
	armed.Store(true)
	var wg sync.WaitGroup
	wg.Go(func() { // under way while the others come
		if _, err := l.Append(t.Context(), publish("q", 1)); err != nil {
			t.Error(err)
		}
	})
	<-begun
	var isNew, replayed, refused atomic.Int64
	for i := range 12 {
		list := [][]commitlog.Append{request(1, "a"), request(1, "b"), elsewhere(1)}[i%3]
		wg.Go(func() {
			got, err := l.Append(t.Context(), list)
			switch {
			case errors.Is(err, commitlog.ErrProducerReuse):
				refused.Add(1)
			case err != nil:
				t.Error(err)
			case got[0].Replayed && got[0].Same:
				replayed.Add(1)
			case !got[0].Replayed:
				isNew.Add(1)
			default:
				t.Errorf("%+v", got)
			}
		})
	}
	time.AfterFunc(100*time.Millisecond, func() { close(release) }) // real: so that they come together
	wg.Wait()
	if isNew.Load() != 1 || replayed.Load() != 3 || refused.Load() != 8 {
		t.Errorf("%d are new, %d repetitions, %d refused", isNew.Load(), replayed.Load(), refused.Load())
	}
	if all := contents(t, l); len(all) != 3+1 {
		t.Errorf("%v are stored", all)
	}
}

// A process of an earlier release may get the slot during an upgrade: it reads values of 29 bytes
// whose first is 1, and ignores headers. What it has written has no hash.
func TestEarlierReleaseReadsNumbers(t *testing.T) { each(t, testEarlierReleaseReadsNumbers) }

func testEarlierReleaseReadsNumbers(t *testing.T, b *kafkatest.Broker) {
	l := fresh(t, b, 3)
	create(t, l, b)
	reader, from := topiclog.New(topiclog.Config{Client: b.Client(t)}), int64(0)
	testkit.Must(t, state.Scan(t.Context(), reader, state.Name, 3, 0, func(r *kafka.Record) error {
		from = r.Offset + 1 // what other tests have left
		return nil
	}))
	old := request(1, "a", "b")[:2]
	for i := range old {
		old[i].Request = producers.Hash{}
	}
	for _, list := range [][]commitlog.Append{old, request(2, "c", "d")} {
		if _, err := l.Append(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	// Kafka answers the end of a transaction before its partitions have the marker of it, and readers
	// like this one do not wait for the marker as the next owner of the slot does.
	testkit.Eventually(t, "numbers with hashes, and without", func() bool {
		hashes := map[bool]int{}
		testkit.Must(t, state.Scan(t.Context(), reader, state.Name, 3, from, func(r *kafka.Record) error {
			if len(r.Key) == 0 || r.Key[0] != 'p' || len(r.Value) == 0 {
				return nil
			}
			if len(r.Value) != 29 || r.Value[0] != 1 {
				t.Errorf("a number is stored as %x", r.Value)
			}
			hashes[len(r.Headers) == 1]++
			return nil
		}))
		return hashes[true] >= 3 && hashes[false] >= 2
	})
	next := open(t, b, 3, time.Now)
	create(t, next, b)
	for n, list := range [][]commitlog.Append{request(1, "a", "other"), request(2, "c", "d")} {
		got, err := next.Append(t.Context(), list)
		if err != nil || !got[0].Replayed || got[0].Same != (n == 1) || !got[2].Replayed {
			t.Errorf("number %d again: %+v, %v", n+1, got, err)
		}
	}
	known, err := next.Remembered(t.Context(), commitlog.Partition{Topic: number, Number: 2}, "p")
	if err != nil || len(known) != 1 || known[0].Number != 2 || known[0].Count != 0 || known[0].Time == 0 {
		t.Errorf("partition 2 remembers %+v, %v", known, err)
	}
}
