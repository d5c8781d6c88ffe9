package consume

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/consume/parked"
)

// storm is members that join, leave and are expelled all the time, while one key in five fails
// again and again, is parked, and is released by an operator. Every record must have its effect
// once and in order: the ledger notices what is lost, repeated or passed by.
type storm struct {
	*fixture
	ledger  *ledger
	shelf   *shelf
	rng     *rand.Rand
	members []func()
	names   int
	sent    int64
	parked  int // keys that were released
}

const stormKeys = 40

func newStorm(t *testing.T, b *kafkatest.Broker, seed uint64) *storm {
	r := newFixture(t, b)
	s := &storm{fixture: r, ledger: newLedger(t, r.store), shelf: &shelf{}, rng: rand.New(rand.NewPCG(seed, 29))}
	s.ledger.fail = func(ctx context.Context, key string, n int64) error {
		if !Redriven(ctx) && n%7 == 3 && strings.HasSuffix(key, "0") {
			return Fail(Permanent, "as planned", nil)
		}
		return nil
	}
	return s
}

func (s *storm) join() {
	s.names++
	e := s.aggregates(s.ledger, s.shelf, func(c *Config) {
		c.Consumer, c.Parallel, c.Expiry = fmt.Sprint("m", s.names), 1+s.rng.IntN(8), 6*time.Second
	})
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx, func() {}) }()
	s.members = append(s.members, func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("a member ended with %v, expected nil", err)
		}
	})
}

func (s *storm) leave() {
	i := s.rng.IntN(len(s.members))
	s.members[i]()
	s.members = slices.Delete(s.members, i, i+1)
}

func (s *storm) send() {
	s.sent++
	var list []*kafka.Record
	for k := range stormKeys {
		key := fmt.Sprint("chat", k/5, "x", k%5)
		list = append(list, &kafka.Record{Topic: topic, Partition: partitionOf(key), Key: []byte(key),
			Value: fmt.Appendf(nil, "%s ok %d", key, s.sent)})
	}
	s.publishRecords(list)
}

// atRest reports whether the members have all partitions and none is about to join. The broker
// in the process never answers the join of a member that is expelled meanwhile.
func (s *storm) atRest() bool {
	groups, err := s.admin().DescribeGroups(s.t.Context(), s.group)
	testkit.Must(s.t, err)
	g, assigned := groups[s.group], 0
	for _, m := range g.Members {
		if a, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range a.Topics {
				assigned += len(t.Partitions)
			}
		}
	}
	return g.State == "Stable" && len(g.Members) == len(s.members) && assigned == int(kafka.Partitions(topic))
}

// operate redrives what is parked.
func (s *storm) operate() {
	s.t.Helper()
	rows, err := parked.List(s.t.Context(), s.store, parked.Select{Group: s.group})
	testkit.Must(s.t, err)
	for _, row := range rows {
		if s.redrive(s.ledger, s.shelf, string(row.Key)) {
			s.parked++
		}
	}
}

// behind returns a key that has not had all records.
func (s *storm) behind() string {
	for k := range stormKeys {
		if key := fmt.Sprint("chat", k/5, "x", k%5); s.ledger.last(s.t, key) < s.sent {
			return key
		}
	}
	return ""
}

// A rebalance storm with parked aggregates loses and reorders nothing, with members that leave
// in order and that are expelled in the middle (EV24, EV27, EV29, EV37). PARLEY_REBALANCES sets
// how often, or how long.
func TestRebalancesWithParkedAggregates(t *testing.T) {
	alongside(t)
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		s := newStorm(t, b, testkit.Seed(t, 1))
		s.join()
		for n := range testkit.Rounds(t, "PARLEY_REBALANCES", 12) {
			s.send()
			switch {
			case n%6 == 5:
				testkit.Eventually(t, "a group at rest", s.atRest)
				s.expel(s.group)
			case len(s.members) == 1 || len(s.members) < 4 && s.rng.IntN(2) == 0:
				s.join()
			default:
				s.leave()
			}
			if n%3 == 2 {
				s.operate()
			}
		}
		testkit.Eventually(t, fmt.Sprintf("%d records of each key", s.sent), func() bool {
			s.operate()
			return s.behind() == ""
		})
		for len(s.members) > 0 {
			s.leave()
		}
		for k := range stormKeys {
			testkit.Must(t, s.ledger.check(t.Context(), fmt.Sprint("chat", k/5, "x", k%5), s.sent))
		}
		if s.parked == 0 && s.sent >= 3 { // the third record is the first that fails
			t.Error("no key was parked and released, expected some")
		}
		for key, list := range s.shelf.list {
			if !strings.HasSuffix(key, "0") {
				t.Errorf("%d dead letters of %s, expected none", len(list), key)
			}
		}
		t.Logf("%d records, %d keys were released", s.sent*stormKeys, s.parked)
	})
}

// Many workers at once keep the order of each key and take all of their share (EV27).
func TestParallelAggregates(t *testing.T) {
	alongside(t)
	r := newFixture(t, kafkatest.InProcess(t))
	l, s := newLedger(t, r.store), &shelf{}
	var mu sync.Mutex
	busy, highest := 0, 0
	all := make(chan struct{})
	together := sync.OnceFunc(func() { close(all) })
	e := r.aggregates(l, s, func(c *Config) {
		c.Parallel = 8
		c.Aggregate = func(ctx context.Context, records []*kafka.Record) (Effect, error) {
			mu.Lock()
			if busy++; busy > highest {
				highest = busy
			}
			if busy == 8 {
				together()
			}
			mu.Unlock()
			defer func() { mu.Lock(); busy--; mu.Unlock() }()
			select { // until eight work at the same time
			case <-all:
			case <-ctx.Done():
			}
			return l.handle(ctx, records)
		}
	})
	const keys, each = 24, 40
	var list []*kafka.Record
	for n := range int64(each) {
		for k := range keys {
			key := fmt.Sprint("k", k)
			list = append(list, &kafka.Record{Topic: topic, Partition: int32(k % 2), Key: []byte(key),
				Value: fmt.Appendf(nil, "%s ok %d", key, n+1)})
		}
	}
	r.publishRecords(list)
	stop := r.run(e)
	defer stop()
	want := map[string]int64{}
	for k := range keys {
		want[fmt.Sprint("k", k)] = each
	}
	r.settled(l, want)
	if highest != 8 {
		t.Errorf("%d calls at a time, expected 8", highest)
	}
}

// Processes are killed at any point while they keep a ledger in the store and one key is parked:
// in the end every record has had its effect once and in order, and the dead letters of the
// parked key are all there, in order (EV19, EV21, EV36, EV39). PARLEY_KILLS sets half of the
// number of kills, or the time for them.
func TestKilledAggregates(t *testing.T) {
	limit := testkit.Most(t, "PARLEY_KILLS", usualKills, 50)
	each := 60 + 8*limit // records of a key: enough that some are left at the last kill
	var values []string
	for n := range each {
		for k := range killedKeys {
			kind := "ok"
			if k == 7 && n+1 == killedBad {
				kind = "bad"
			}
			values = append(values, fmt.Sprintf("chat%d %s %d", k, kind, n+1))
		}
	}
	homes(t, values, func(t *testing.T, h *home) { killedAggregates(t, h, each, limit) })
}

const (
	killedKeys, killedBad = 20, 30 // keys, and the record of one that fails
	usualKills            = 2      // half of the kills of a plain go test
)

func killedAggregates(t *testing.T, h *home, each, limit int) {
	var deadLetters []int64
	finished := map[string]int64{}
	follow := func(p *process, enough func() bool) (ended bool) {
		for line := range p.lines {
			f := strings.Fields(line)
			n, err := strconv.ParseInt(f[len(f)-1], 10, 64)
			if f[0] == "error" || err != nil {
				t.Fatalf("the child failed: %s", line)
			}
			fresh := true // what is repeated after a kill makes no progress
			switch {
			case f[0] == "dead" && !slices.Contains(deadLetters, n):
				deadLetters = append(deadLetters, n)
			case f[0] == "applied" && n > finished[f[1]]:
				finished[f[1]] = n
			default:
				fresh = false
			}
			if fresh && enough() {
				return false
			}
		}
		return true
	}
	all := func() bool {
		for k := range killedKeys {
			if key := fmt.Sprint("chat", k); finished[key] < int64(each) && k != 7 {
				return false
			}
		}
		return len(deadLetters) == each-killedBad+1
	}
	kill := func(n int) {
		if all() {
			t.Fatalf("all was finished after %d kills, expected some to be left for %d", n, 2*limit)
		}
		p := h.start("aggregates")
		left := []int{1, 14, 30, 2, 45, 20, 5, 9}[n%8]
		if follow(p, func() bool { left--; return left <= 0 || all() }) {
			t.Fatal("a process ended by itself, expected it to wait for its kill")
		}
		testkit.Must(t, p.cmd.Process.Kill())
		follow(p, func() bool { return false })
		_ = p.cmd.Wait()
	}
	for n := range testkit.Rounds(t, "PARLEY_KILLS", usualKills) {
		if n == limit {
			break
		}
		kill(2 * n)
		kill(2*n + 1)
	}
	p := h.start("aggregates")
	if !all() {
		follow(p, all)
	}
	p.end(t)
	for i, n := range deadLetters {
		if n != int64(killedBad+i) {
			t.Fatalf("the letters are of records %v, expected %d and all behind it, in order", deadLetters, killedBad)
		}
	}
	eng, err := openEngine(h.dir)
	testkit.Must(t, err)
	defer eng.Close()
	l := newLedger(t, eng.Store)
	for k := range killedKeys {
		n := int64(each)
		if k == 7 {
			n = killedBad - 1
		}
		testkit.Must(t, l.check(t.Context(), fmt.Sprint("chat", k), n))
	}
	rows, err := parked.List(t.Context(), eng.Store, parked.Select{})
	if err != nil || len(rows) != 1 || rows[0].Records != int64(each-killedBad+1) {
		t.Fatalf("%+v, %v; expected one key with %d records", rows, err, each-killedBad+1)
	}
}

// childLedger is the handler of a child that keeps a ledger and prints what is committed.
func childLedger(cfg *Config) {
	l := &ledger{store: cfg.Store, wrong: func(format string, args ...any) { fmt.Printf("error "+format+" 0\n", args...) }}
	cfg.Store = reportingStore{cfg.Store}
	cfg.Handle = nil
	cfg.Aggregate = func(ctx context.Context, records []*kafka.Record) (Effect, error) {
		records = records[:min(len(records), 2)] // many effects, so that kills fall between them
		bad := slices.IndexFunc(records, func(r *kafka.Record) bool { return strings.Contains(string(r.Value), " bad ") })
		if bad == 0 {
			return Effect{}, Fail(Permanent, "as planned", nil)
		}
		if bad > 0 {
			e, err := l.handle(ctx, records[:bad])
			if err == nil {
				err = Fail(Permanent, "as planned", nil)
			}
			return e, err
		}
		e, err := l.handle(ctx, records)
		if err == nil && len(e.Writes) == 0 { // it comes again: it is in the store
			fmt.Println("applied", string(records[0].Key), numberOf(records[len(records)-1]))
		}
		return e, err
	}
	cfg.WriteDeadLetter = func(_ context.Context, d DeadLetter) error {
		fmt.Println("dead", string(d.Record.Key), numberOf(d.Record))
		return nil
	}
}

// reportingStore prints which effects are committed.
type reportingStore struct{ store.Store }

func (s reportingStore) Transact(ctx context.Context, p store.Plan) error {
	err := s.Store.Transact(ctx, p)
	for _, w := range p.Writes {
		if err == nil && w.Key.Table == store.Notifications {
			fmt.Println("applied", w.Key.SK, w.Item.Get("last").Int64())
		}
	}
	return err
}
