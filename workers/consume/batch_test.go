package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/storetest"
)

// The calls of a handler of batches and the outcomes of the records: a failure counts against a
// record that failed alone, wherever it is in a batch and whatever the handler returns (K-106,
// K-115, K-127, K-130, K-134).
func TestBatches(t *testing.T) {
	defer func(old []time.Duration) { downstreamWaits = old }(downstreamWaits)
	downstreamWaits = []time.Duration{time.Microsecond, time.Microsecond, time.Microsecond}
	bad := func(at int, err error) func([]int) (int, error) { // returns its position
		return func(list []int) (int, error) {
			for i, n := range list {
				if n == at {
					return i, err
				}
			}
			return len(list), nil
		}
	}
	blind := func(at int, fail func() error) func([]int) (int, error) { // does not
		return func(list []int) (int, error) {
			for _, n := range list {
				if n == at {
					return 0, fail()
				}
			}
			return len(list), nil
		}
	}
	unknown := errors.New("unknown")
	for _, c := range []struct {
		name    string
		handle  func([]int) (int, error)
		calls   string
		done    string // finished, in order
		skipped int64
		dead    string
		fatal   bool
	}{
		{"no failure", bad(9, nil), "01234", "01234", 0, "", false},
		{"permanent", bad(2, Fail(Permanent, "bad", nil)), "01234 2 34", "01234", 0, "2", false},
		{"permanent, the first", bad(0, Fail(Permanent, "bad", nil)), "01234 0 1234", "01234", 0, "0", false},
		{"permanent, the last", bad(4, Fail(Permanent, "bad", nil)), "01234 4", "01234", 0, "4", false},
		{"permanent, of an unknown record", blind(2, func() error { return Fail(Permanent, "bad", nil) }), "01234 0 1 2 34",
			"01234", 0, "2", false},
		{"panic", blind(2, func() error { panic("as planned") }), "01234 0 1 2", "01", 0, "", false},
		{"unknown", bad(3, unknown), "01234 3", "012", 0, "", false},
		{"downstream", bad(1, Fail(Downstream, "unavailable", nil)), "01234 1234 1234 1234 234", "01234", 1, "", false},
		{"downstream for all", func([]int) (int, error) { return 0, Fail(Downstream, "unavailable", nil) },
			"01234 01234 01234 01234 1234 234 34 4", "01234", 5, "", false},
		{"authoritative", bad(2, Fail(Authoritative, "unavailable", nil)), "01234", "01", 0, "", false},
		{"ignored", bad(2, Fail(Ignored, "of another kind", nil)), "01234 34", "01234", 0, "", false},
		{"ignored, the last", bad(4, Fail(Ignored, "of another kind", nil)), "01234", "01234", 0, "", false},
		{"fatal", bad(2, Fail(Fatal, "start again", nil)), "01234 2", "01", 0, "", true},
		{"returns more than there are", func(list []int) (int, error) { return 99, Fail(Permanent, "bad", nil) }, "01234",
			"01234", 0, "", false},
		{"returns less than none", blindly(Fail(Permanent, "bad", nil)), "01234 0 1234 1 234 2 34 3 4", "01234", 0, "01234",
			false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var calls []string
			var dead strings.Builder
			e, err := New(Config{
				Addr: "-", Group: "g", Topics: []string{topic}, Store: storetest.NewMemory(time.Now), Clock: time.Now,
				Logger: slog.New(slog.DiscardHandler),
				Batch: func(_ context.Context, records []*kafka.Record) (int, error) {
					var list []int
					text := ""
					for _, r := range records {
						list = append(list, int(r.Offset))
						text += fmt.Sprint(r.Offset)
					}
					calls = append(calls, text)
					return c.handle(list)
				},
				WriteDeadLetter: func(_ context.Context, d DeadLetter) error {
					fmt.Fprint(&dead, d.Record.Offset)
					return nil
				},
			})
			testkit.Must(t, err)
			po := &portion{done: make([]bool, 5)}
			kb := &keyBatch{portion: po, indexes: []int{0, 1, 2, 3, 4}}
			for i := range po.done {
				po.batch.Records = append(po.batch.Records, &kafka.Record{Topic: topic, Offset: int64(i), Key: []byte("k")})
			}
			var stop atomic.Bool
			e.workBatch(t.Context(), kb, &stop)
			done := ""
			for i, ok := range po.done {
				if ok {
					done += fmt.Sprint(i)
				}
			}
			if got := strings.Join(calls, " "); got != c.calls {
				t.Errorf("the handler was called with %s, expected %s", got, c.calls)
			}
			if done != c.done || dead.String() != c.dead || e.Stats().Skipped != c.skipped || (kb.fatal != nil) != c.fatal ||
				stop.Load() != c.fatal {
				t.Errorf("finished %s, dead letters %s, %d skipped, fatal %v; expected %s, %s, %d, %v", done, dead.String(),
					e.Stats().Skipped, kb.fatal, c.done, c.dead, c.skipped, c.fatal)
			}
			if n := e.Stats(); n.Handled+n.Skipped+n.Ignored+n.DeadLettered != int64(len(done)) {
				t.Errorf("%+v, expected the outcomes to add up to %d", n, len(done))
			}
		})
	}
}

func blindly(err error) func([]int) (int, error) {
	return func([]int) (int, error) { return -3, err }
}

// A round has at most 500 records (K-094). Every partition gets its turn, and a few records do
// not wait for many of another partition.
func TestRounds(t *testing.T) {
	e, err := New(Config{
		Addr: "-", Group: "g", Topics: []string{topic}, Store: storetest.NewMemory(time.Now), Clock: time.Now,
		Logger:          slog.New(slog.DiscardHandler),
		Handle:          func(context.Context, *kafka.Record) error { return nil },
		WriteDeadLetter: func(context.Context, DeadLetter) error { return nil },
	})
	testkit.Must(t, err)
	const parts = 64
	fill := func(p int32, n int) {
		b := kafka.Batch{End: int64(n)}
		for i := range n {
			b.Records = append(b.Records, &kafka.Record{Topic: topic, Partition: p, Offset: int64(i)})
		}
		e.add(map[kafka.Partition]kafka.Batch{{Topic: topic, ID: p}: b})
	}
	for p := range int32(parts) {
		fill(p, map[bool]int{false: 1_000, true: 3}[p%8 == 7])
	}
	next := map[int32]int64{}
	served := map[int32]int{} // round of the first turn
	for round := 1; ; round++ {
		portions := e.takeRound()
		if len(portions) == 0 {
			break
		}
		total := 0
		for _, po := range portions {
			total += len(po.done)
			if served[po.partition.id.ID] == 0 {
				served[po.partition.id.ID] = round
			}
			for _, r := range po.batch.Records {
				if r.Offset != next[po.partition.id.ID] {
					t.Fatalf("partition %d: offset %d, expected %d", po.partition.id.ID, r.Offset, next[po.partition.id.ID])
				}
				next[po.partition.id.ID]++
			}
		}
		if total > 500 || (total < 500 && e.ready() > 0) {
			t.Fatalf("round %d has %d records, expected 500 unless nothing else is ready; %d bytes are", round, total, e.ready())
		}
	}
	for p := range int32(parts) {
		if want := map[bool]int64{false: 1_000, true: 3}[p%8 == 7]; next[p] != want {
			t.Errorf("partition %d: %d records in all rounds, expected %d", p, next[p], want)
		}
		if served[p] > parts*quantum/500 {
			t.Errorf("partition %d had its first turn in round %d, expected up to %d", p, served[p], parts*quantum/500)
		}
	}
	if e.ready() != 0 {
		t.Errorf("%d bytes are ready after all records, expected 0", e.ready())
	}
	e.lastTurn = kafka.Partition{}
	fill(1, 10_000)
	fill(2, 3)
	if portions := e.takeRound(); len(portions) != 2 || len(portions[0].done) != 497 {
		t.Fatalf("%d partitions in a round, expected 2, with 497 records of the first", len(portions))
	}
}
