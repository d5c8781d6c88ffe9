package deadletter

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/consume/parked"
)

// line is a group whose handler of aggregates takes the records of a key in order, and a
// manager of its dead letters. Values are numbers: 1, 2, 3 and so on for each key.
type line struct {
	t           *testing.T
	store       store.Store
	broker      *kafkatest.Broker
	manager     *Manager
	out         *kafka.Client
	engine      *consume.Engine
	sick        atomic.Bool // the second record of a key fails
	broken      atomic.Bool // every record fails
	gaps        atomic.Bool // are allowed
	deadLetters atomic.Int64

	mu   sync.Mutex
	sent map[string]int
}

const lineGroup = "projector"

func newLine(t *testing.T) *line {
	t.Helper()
	b := kafkatest.InProcess(t)
	c, err := kafka.NewProducer(b.Addr)
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	l := &line{t: t, store: dynamotest.Store(t, time.Now), broker: b, out: c, sent: map[string]int{}}
	l.sick.Store(true)
	logger := slog.New(slog.DiscardHandler)
	l.manager, err = New(Config{Addr: b.Addr, Store: l.store, Clock: time.Now, Logger: logger})
	testkit.Must(t, err)
	deadLetter := consume.Publisher(c, func(b []byte) ([]byte, error) {
		return append([]byte{0, 0, 0, 0, 9, 0}, b...), nil
	})
	l.engine, err = consume.New(consume.Config{
		Addr: b.Addr, Group: lineGroup, Consumer: "c", Topics: []string{kafka.ChatsCreated}, Store: l.store, Clock: time.Now,
		Logger: logger, Aggregate: l.handle,
		WriteDeadLetter: func(ctx context.Context, d consume.DeadLetter) error {
			err := deadLetter(ctx, d)
			if err == nil {
				l.deadLetters.Add(1)
			}
			return err
		},
	})
	testkit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.engine.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the engine ended with %v, expected nil", err)
		}
	})
	return l
}

func lineKey(key string) store.Key { return store.Key{Table: store.Notifications, PK: "line", SK: key} }

// handle takes the next number of a key, and takes again what it had before.
func (l *line) handle(ctx context.Context, list []*kafka.Record) (e consume.Effect, failure error) {
	key := string(list[0].Key)
	row, err := l.store.Get(ctx, lineKey(key), store.Strong)
	if err != nil {
		return e, err
	}
	last := int(row.Get("last").Int64())
	for _, r := range list {
		n, _ := strconv.Atoi(string(r.Value))
		if n > last+1 && !l.gaps.Load() {
			l.t.Errorf("%s: record %d after %d, expected the next one", key, n, last)
		}
		if n == 2 && l.sick.Load() || l.broken.Load() {
			failure = event.ErrSchema
			break
		}
		last = max(last, n)
		e.Finished++
	}
	e.Writes = []store.Write{{Op: store.OpPut, Key: lineKey(key),
		Item: store.NewItem(store.Attr{Name: "last", Value: store.Int(int64(last))})}}
	return e, failure
}

// send publishes the next record of a key.
func (l *line) send(key string) {
	l.t.Helper()
	l.mu.Lock()
	l.sent[key]++
	n := l.sent[key]
	l.mu.Unlock()
	testkit.Must(l.t, kafka.Publish(l.t.Context(), l.out,
		&kafka.Record{Topic: kafka.ChatsCreated, Partition: 3, Key: []byte(key), Value: []byte(strconv.Itoa(n))}))
}

// records is how many records of a key are parked, and until when it is held.
func (l *line) records(key string) (n, held int64) {
	l.t.Helper()
	rows, err := parked.List(l.t.Context(), l.store, parked.Select{Group: lineGroup, Topic: kafka.ChatsCreated, Key: key})
	testkit.Must(l.t, err)
	if len(rows) == 0 {
		return 0, 0
	}
	return rows[0].Records, rows[0].HoldUntil
}

func (l *line) last(key string) int {
	l.t.Helper()
	row, err := l.store.Get(l.t.Context(), lineKey(key), store.Strong)
	testkit.Must(l.t, err)
	return int(row.Get("last").Int64())
}

// parks sends records of a key until n of them are parked.
func (l *line) parks(key string, n int) {
	l.t.Helper()
	for range n + 1 {
		l.send(key)
	}
	testkit.Eventually(l.t, fmt.Sprintf("%d letters of %s", n, key), func() bool {
		p, err := l.manager.List(l.t.Context(), Filter{Group: lineGroup, Key: key}, maxDeadLetters, Position{})
		testkit.Must(l.t, err)
		return len(p.DeadLetters) == n
	})
}

func (l *line) redrive(f Filter, onOutcome OnOutcome) Report {
	l.t.Helper()
	rep, err := l.manager.Redrive(l.t.Context(), f, Redrive{Actor: "ops", Rate: maxRate, OnOutcome: onOutcome,
		Handlers: map[string]consume.Handler{lineGroup: consume.AggregateHandler(l.handle).One(l.store)}})
	testkit.Must(l.t, err)
	return rep
}

// A parked key is released once all its dead letters are redriven, in one call or in several,
// and not before; then its records are handled again.
func TestRedriveReleasesTheKey(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.parks("a", 4)
	l.parks("b", 2)
	if rep := l.redrive(Filter{Key: "a"}, nil); rep.Failed != 1 || rep.Behind != 3 {
		t.Fatalf("%+v, expected one that failed again and three behind it", rep)
	}
	if n, _ := l.records("a"); n != 4 {
		t.Fatalf("%d records are parked, expected 4", n)
	}
	l.sick.Store(false)
	p, err := l.manager.List(t.Context(), Filter{Key: "a"}, maxDeadLetters, Position{})
	testkit.Must(t, err)
	for i, deadLetter := range p.DeadLetters {
		if n, _ := l.records("a"); n != 4 {
			t.Fatalf("%d records are parked before letter %d, expected 4", n, i)
		}
		if rep := l.redrive(Filter{IDs: []string{deadLetter.ID()}}, nil); rep.Done != 1 {
			t.Fatalf("letter %d: %+v, expected it to be done", i, rep)
		}
	}
	if n, _ := l.records("a"); n != 0 {
		t.Fatalf("%d records are parked after the last letter, expected none", n)
	}
	if n, _ := l.records("b"); n != 2 {
		t.Fatalf("%d records of the other key are parked, expected 2", n)
	}
	l.send("a")
	testkit.Eventually(t, "the next record", func() bool { return l.last("a") == 6 })
	if rep := l.redrive(Filter{}, nil); rep.Done != 2 {
		t.Fatalf("%+v, expected the other key's letters to be done", rep)
	}
	l.send("b")
	testkit.Eventually(t, "the other key's next record", func() bool { return l.last("b") == 4 })
}

// Records come all the time: each dead letter that is redriven is followed by a new one. The key
// is held, its last dead letter is reached, and the record that waits meanwhile is handled after
// it.
func TestBusyKeyIsReleased(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.parks("a", 3)
	l.sick.Store(false)
	held := false
	rep := l.redrive(Filter{Key: "a"}, func(string, Outcome, string) error {
		before, hold := l.records("a")
		held = held || hold > 0
		l.send("a")
		if hold > 0 {
			testkit.Eventually(t, "the partition waits", func() bool { return l.engine.Stats().Pauses > 0 })
			return nil
		}
		testkit.Eventually(t, "the record is parked", func() bool {
			n, _ := l.records("a")
			return n > before
		})
		return nil
	})
	if n, _ := l.records("a"); n != 0 || !held {
		t.Fatalf("%+v: %d records are parked, held: %v; expected none, after it was held", rep, n, held)
	}
	l.send("a")
	l.mu.Lock()
	sent := l.sent["a"]
	l.mu.Unlock()
	testkit.Eventually(t, "all records", func() bool { return l.last("a") == sent })
}

// A hold does not outlive the call that could not release the key.
func TestHoldEndsWithTheCall(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.parks("a", 1)
	l.sick.Store(false)
	calls := 0
	rep := l.redrive(Filter{Key: "a"}, func(string, Outcome, string) error {
		if calls++; calls > 2 {
			return nil
		}
		before := l.deadLetters.Load()
		l.send("a")
		// Its dead letter follows its row: with the row alone, the key would be held already when the dead letter
		// is reached.
		testkit.Eventually(t, "the letter of the record", func() bool { return l.deadLetters.Load() > before })
		l.broken.Store(calls == 2) // the next one, which is reached while the key is held, fails
		return nil
	})
	n, hold := l.records("a")
	if n == 0 || hold != 0 || rep.Failed != 1 {
		t.Fatalf("%+v: %d records are parked, held until %d; expected some, and no hold", rep, n, hold)
	}
}

// Dead letters that are discarded release their key, too, also in a call that comes after a
// crash between the last dead letter and the release.
func TestDiscardReleasesTheKey(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.parks("a", 3)
	l.gaps.Store(true)
	discard := func(f Filter, limit int) {
		t.Helper()
		_, err := l.manager.Discard(t.Context(), f, Discard{Actor: "ops", Reason: "not wanted", Limit: limit})
		testkit.Must(t, err)
	}
	discard(Filter{Key: "a"}, 2)
	if n, _ := l.records("a"); n != 3 {
		t.Fatalf("%d records are parked after two of three letters, expected 3", n)
	}
	p, err := l.manager.List(t.Context(), Filter{Key: "a"}, maxDeadLetters, Position{})
	testkit.Must(t, err)
	// The last one, as a call that has ended before it could release the key.
	testkit.Must(t, l.manager.setStatus(t.Context(), &p.DeadLetters[0], Discarded, "ops", "not wanted"))
	discard(Filter{Key: "a"}, 0)
	if n, _ := l.records("a"); n != 0 {
		t.Fatalf("%d records are parked, expected none", n)
	}
	l.send("a")
	testkit.Eventually(t, "the next record", func() bool { return l.last("a") == 5 })
}

// A record that is counted has no dead letter yet, as after a crash in between: the key is not
// released without it, though all dead letters that there are are done with.
func TestKeyWaitsForItsLastDeadLetter(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.parks("a", 2)
	rows, err := parked.List(t.Context(), l.store, parked.Select{Group: lineGroup})
	testkit.Must(t, err)
	log := parked.Log{Store: l.store, Clock: time.Now, Group: lineGroup, Consumer: "c"}
	next := &kafka.Record{Topic: kafka.ChatsCreated, Partition: 3, Offset: rows[0].Last + 7, Key: []byte("a"),
		Value: []byte("4")}
	_, err = log.Follow(t.Context(), []*kafka.Record{next})
	testkit.Must(t, err)
	l.sick.Store(false)
	if rep := l.redrive(Filter{Key: "a"}, nil); rep.Done != 2 {
		t.Fatalf("%+v, expected two letters to be done", rep)
	}
	if n, hold := l.records("a"); n != 3 || hold != 0 {
		t.Fatalf("%d records are parked, held until %d; expected 3, and no hold", n, hold)
	}
}
