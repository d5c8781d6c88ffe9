package record

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// counted are ids as tests need them.
func counted() func(prefix string) string {
	var n atomic.Int64
	return func(prefix string) string { return fmt.Sprint(prefix, n.Add(1)) }
}

func click(id string) search.Event {
	return search.Event{ClientID: id, Content: &searchv1.SearchClick{SearchId: "s", ResultId: "r"}}
}

func clicks(n int) (list []search.Event) {
	for i := range n {
		list = append(list, click(fmt.Sprint(i)))
	}
	return list
}

// stored reads all events of a store, by id, and the number of each stream's rows. A row
// of the outbox must announce each of them.
func stored(t *testing.T, st store.Store) (events map[string]search.Recorded, rows int) {
	t.Helper()
	events = map[string]search.Recorded{}
	for r, err := range store.ScanAll(t.Context(), st, store.Scan{Table: store.SearchEvents, Segments: 1}) {
		testkit.Must(t, err)
		row := testkit.Value(table.SearchEventsFrom(r))(t)
		for _, e := range testkit.Value(search.Decode(row))(t) {
			events[e.ID] = e
		}
		rows++
		o := table.Outbox{Shard: event.Shard(row.Stream), AggregateID: row.Stream, FirstVersion: row.First}
		it := testkit.Value(st.Get(t.Context(), o.Key(), store.Strong))(t)
		if o, err := table.OutboxFrom(store.Row{Key: o.Key(), Item: it}); err != nil || o.Count != row.Count ||
			o.Shard < 64 || o.Shard > 71 {
			t.Errorf("%+v announces %s, %v", o, r.Key, err)
		}
	}
	return events, rows
}

// What Record answered is in the store, announced to the relay, under the ids that it said.
func TestRecord(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	clock := func() time.Time { return now }
	st := storetest.NewMemory(clock)
	var woken []string
	r := New(Config{Store: st, Clock: clock, NewID: counted(), Retention: time.Hour,
		Recorded: func(stream string) { woken = append(woken, stream) }})
	ids := testkit.Value(r.Record(t.Context(), "alice", clicks(100)))(t)
	more := testkit.Value(r.Record(t.Context(), "alice", []search.Event{
		{Content: &searchv1.AcSelect{SearchId: "s", Suggestion: "x"}, OccurredAt: now.Add(-MaxAge)}}))(t)
	testkit.Equal(t, "ids", fmt.Sprintln(ids[0], ids[99], more), "srch_1-1 srch_1-100 [srch_1-101]\n")
	testkit.Equal(t, "woken", fmt.Sprint(woken), "[srch_1 srch_1]")
	events, rows := stored(t, st)
	testkit.Equal(t, "events", len(events), 101)
	testkit.Equal(t, "rows", rows, 2)
	for i, id := range ids {
		e := testkit.Value(events[id].Envelope())(t)
		if events[id].GetClientEventId() != fmt.Sprint(i) || e.EventID != id || e.OccurredAt != "2023-11-14T22:13:20.000Z" ||
			!strings.Contains(string(e.Payload), "alice") {
			t.Errorf("event %d is %+v", i, e)
		}
	}
	testkit.Equal(t, "counted", r.Stats(), Stats{Stored: 101})
	now = now.Add(time.Hour + time.Second) // they expire; what announces them does not
	if events, _ := stored(t, st); len(events) != 0 {
		t.Errorf("%d events after their retention", len(events))
	}
}

// What is wrong is refused, and nothing of the call is stored.
func TestRefusals(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	clock := func() time.Time { return now }
	st := storetest.NewMemory(clock)
	r := New(Config{Store: st, Clock: clock, NewID: counted(), Retention: time.Hour})
	large := func(n int) search.Event {
		return search.Event{Content: &searchv1.AcImpression{SearchId: "s", Suggestions: []string{strings.Repeat("x", n)}}}
	}
	// A control character is one byte here and six in JSON.
	escaped := func(n int) search.Event {
		return search.Event{Content: &searchv1.AcImpression{SearchId: "s", Suggestions: []string{strings.Repeat("\x01", n)}}}
	}
	at := func(d time.Duration) search.Event {
		e := click("")
		e.OccurredAt = now.Add(d)
		return e
	}
	for name, c := range map[string]struct {
		events []search.Event
		want   error
	}{
		"none": {nil, ErrTooLarge}, "too many": {clicks(101), ErrTooLarge},
		"one too large":     {[]search.Event{click(""), large(64 << 10)}, ErrTooLarge},
		"too large as JSON": {[]search.Event{click(""), escaped(43_400)}, ErrTooLarge},
		"too old":           {[]search.Event{click(""), at(-MaxAge - time.Millisecond)}, ErrTime},
		"too new":           {[]search.Event{at(MaxAhead + time.Millisecond)}, ErrTime},
	} {
		if _, err := r.Record(t.Context(), "alice", c.events); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, expected %v", name, err, c.want)
		}
	}
	var many []search.Event
	for range 20 {
		many = append(many, large(60<<10))
	}
	if _, err := r.Record(t.Context(), "alice", many); !errors.Is(err, ErrTooLarge) {
		t.Errorf("1.2 MB: %v, expected %v", err, ErrTooLarge)
	}
	if events, _ := stored(t, st); len(events) != 0 {
		t.Errorf("%d events are stored, expected none", len(events))
	}
	testkit.Value(r.Record(t.Context(), "alice", many[:17]))(t)
	testkit.Value(r.Record(t.Context(), "alice", []search.Event{at(-MaxAge), at(MaxAhead)}))(t)
	if events, rows := stored(t, st); len(events) != 19 || rows != 6 {
		t.Errorf("%d events in %d rows, expected 19 in 6: a row has at most 256 KiB", len(events), rows)
	}
	id := testkit.Value(r.Record(t.Context(), "alice", []search.Event{escaped(43_200)}))(t)[0]
	events, _ := stored(t, st)
	envelope := testkit.Value(events[id].Envelope())(t)
	if b := testkit.Value(envelope.JSON())(t); len(b) < 43_200*6 || len(b) > 256<<10 {
		t.Errorf("the largest event that is accepted has %d bytes as JSON", len(b))
	}
}

// While the event log has no room for search events, none are accepted, and it is counted.
func TestNoRoomInTheLog(t *testing.T) {
	st, full := storetest.NewMemory(time.Now), true
	r := New(Config{Store: st, Clock: time.Now, NewID: counted(), Retention: time.Hour,
		LogFull: func() bool { return full }})
	if _, err := r.Record(t.Context(), "alice", clicks(2)); !errors.Is(err, ErrLogFull) {
		t.Errorf("%v, expected %v", err, ErrLogFull)
	}
	if events, _ := stored(t, st); len(events) != 0 {
		t.Errorf("%d refused events are stored", len(events))
	}
	full = false
	testkit.Value(r.Record(t.Context(), "alice", clicks(2)))(t)
	testkit.Equal(t, "counted", r.Stats(), Stats{Stored: 2, LogFull: 1})
}

// slowly is a store whose transactions wait until they are let go.
type slowly struct {
	store.Store
	transactions atomic.Int64
	writes       atomic.Int64
	gate         chan struct{}
}

func (s *slowly) Transact(ctx context.Context, p store.Plan) error {
	<-s.gate
	s.transactions.Add(1)
	s.writes.Add(int64(len(p.Writes)))
	return s.Store.Transact(ctx, p)
}

// Calls that come while a transaction runs share the next one, and its rows. A caller who
// leaves changes nothing for the others; one with too many calls is refused.
func TestCallsShareTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slowly{Store: storetest.NewMemory(time.Now), gate: make(chan struct{})}
		r := New(Config{Store: st, Clock: time.Now, NewID: counted(), Retention: time.Hour})
		leaving, leave := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		var failed, busy atomic.Int64
		for i := range 66 {
			ctx := t.Context()
			if i == 0 {
				ctx = leaving // it leads the first transaction
			}
			calls.Go(func() {
				switch ids, err := r.Record(ctx, "alice", clicks(1)); {
				case errors.Is(err, ErrBusy):
					busy.Add(1)
				case err != nil || len(ids) != 1:
					failed.Add(1)
				}
			})
			synctest.Wait()
		}
		leave()
		close(st.gate)
		calls.Wait()
		if failed.Load() != 0 || busy.Load() != 2 || st.transactions.Load() != 2 || st.writes.Load() != 4 {
			t.Errorf("%d failed, %d refused, %d transactions with %d rows; expected 0, 2, 2, 4", failed.Load(), busy.Load(),
				st.transactions.Load(), st.writes.Load())
		}
		if events, _ := stored(t, st.Store); len(events) != 64 {
			t.Errorf("%d events, expected 64", len(events))
		}
	})
}

// A transaction takes only so many rows; the calls behind it run in the next one, and streams
// end after some thousand events.
func TestManyEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &slowly{Store: storetest.NewMemory(time.Now), gate: make(chan struct{})}
		r := New(Config{Store: st, Clock: time.Now, NewID: counted(), Retention: time.Hour})
		var calls sync.WaitGroup
		streams := sync.Map{}
		for range 60 {
			calls.Go(func() {
				ids, err := r.Record(t.Context(), "alice", clicks(100))
				if err != nil || len(ids) != 100 {
					t.Errorf("%d ids, %v", len(ids), err)
				}
				for _, id := range ids {
					stream, _, _ := strings.Cut(id, "-")
					streams.Store(stream, true)
				}
			})
		}
		synctest.Wait()
		close(st.gate)
		calls.Wait()
		events, rows := stored(t, st.Store)
		n := 0
		streams.Range(func(any, any) bool { n++; return true })
		if len(events) != 6000 || rows != 60 || n != 2 || st.transactions.Load() > 4 {
			t.Errorf("%d events in %d rows, %d streams and %d transactions; expected 6000, 60, 2, up to 4", len(events), rows, n,
				st.transactions.Load())
		}
	})
}

// Whatever the store does, what was answered is there once, and what was refused for good
// costs nobody a number twice.
func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := storetest.NewMemory(time.Now)
		st := faulty.New(memory, faulty.Options{Policy: faulty.Random(7, faulty.Rates{Unavailable: .1, Throttled: .1,
			Conflict: .1, Applied: .2, NotApplied: .1})})
		r := New(Config{Store: st, Clock: time.Now, NewID: counted(), Retention: 240 * time.Hour})
		answered := map[string]string{}
		for i := range 300 {
			name := fmt.Sprint("c", i)
			ids, err := r.Record(t.Context(), "alice", []search.Event{click(name)})
			if err != nil {
				continue
			}
			if was, twice := answered[ids[0]]; twice {
				t.Fatalf("%s is %s and %s", ids[0], was, name)
			}
			answered[ids[0]] = name
		}
		events, _ := stored(t, memory)
		for id, name := range answered {
			if events[id].RecordedEvent == nil || events[id].GetClientEventId() != name {
				t.Errorf("%s is not in the store as %s", name, id)
			}
		}
		if len(answered) < 100 {
			t.Errorf("%d of 300 were answered", len(answered))
		}
	})
}
