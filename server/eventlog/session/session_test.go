package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
)

var (
	topicA = kafka.Topic{Name: "a", Partitions: 3}
	a0     = kafka.Partition{Topic: "a", ID: 0}
	a1     = kafka.Partition{Topic: "a", ID: 1}
	a2     = kafka.Partition{Topic: "a", ID: 2}
	readA  = kafka.SessionConfig{Topics: []string{"a"}}
)

// A partition is read from its committed offset, from its start without one or with one that is
// trimmed, and from its end with one beyond it.
func TestStart(t *testing.T) {
	for name, tt := range map[string]struct{ committed, want int64 }{
		"nothing committed": {-1, 3}, "trimmed": {1, 3}, "committed": {5, 5}, "the end": {8, 8}, "beyond the end": {50, 8},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog(topicA)
			for range 8 {
				l.append(a1, 0, 10)
			}
			l.trim(a1, 3)
			if tt.committed >= 0 {
				l.offsets[a1] = tt.committed
			}
			m := join(t, l, readA)
			got := offsets(testkit.Value(m.Fetched())(t)[a1])
			l.append(a1, 0, 10)
			got = append(got, offsets(testkit.Value(m.Fetched())(t)[a1])...)
			want := []int64{}
			for o := tt.want; o <= 8; o++ {
				want = append(want, o)
			}
			if !slices.Equal(got, want) {
				t.Errorf("records %v, expected %v", got, want)
			}
		})
	}
}

// Each partition has its turn in a poll, whatever the others have, and a poll is bounded: in bytes
// of a partition and of all. Partitions beyond the bound are the first of the next poll.
func TestTurns(t *testing.T) {
	const record, of = 10 << 10, 100
	l := newLog(kafka.Topic{Name: "a", Partitions: of})
	for n := range 20 {
		for id := range int32(of) {
			if id != 70 || n == 0 {
				l.append(kafka.Partition{Topic: "a", ID: id}, 0, record)
			}
		}
	}
	m := join(t, l, readA)
	polls := map[int32]int{}
	for n := range 2 {
		total := 0
		for p, batch := range testkit.Value(m.Fetched())(t) {
			size := len(batch.Records) * record
			if total += size; size > 64<<10+record {
				t.Errorf("%d bytes of %s in one poll, expected at most 64 KiB and a record", size, p)
			}
			polls[p.ID]++
			if batch.End != l.parts[p].end {
				t.Errorf("the end of %s is %d, expected %d", p, batch.End, l.parts[p].end)
			}
		}
		if total > 4<<20+64<<10+record || total < 4<<20 {
			t.Errorf("%d bytes in poll %d, expected about 4 MiB", total, n)
		}
	}
	for id := range int32(of) {
		if polls[id] == 0 {
			t.Errorf("partition %d had no turn in two polls", id)
		}
	}
}

// A poll waits for MinFetch bytes, but not longer than MaxWait after the poll before it. Without
// MinFetch it ends with the first record.
func TestMinFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(topicA)
		cfg := kafka.SessionConfig{Topics: []string{"a"}, MinFetch: 1000, MaxWait: time.Second}
		m := join(t, l, cfg)
		poll := func(m *member, d time.Duration) (records int, took time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			began := time.Now()
			for _, b := range testkit.Value(m.Poll(ctx))(t) {
				records += len(b.Records)
			}
			return records, time.Since(began)
		}
		want := func(what string, m *member, d time.Duration, records int, took time.Duration) {
			t.Helper()
			if n, d := poll(m, d); n != records || d != took {
				t.Errorf("%s: %d records after %v, expected %d after %v", what, n, d, records, took)
			}
		}
		want("nothing", m, 2300*time.Millisecond, 0, 2300*time.Millisecond)
		l.append(a0, 0, 500)
		want("too little, until MaxWait", m, time.Minute, 1, 700*time.Millisecond)
		l.append(a0, 0, 500)
		l.append(a1, 0, 500)
		want("enough, in two partitions", m, time.Minute, 2, 0)
		go func() {
			time.Sleep(300 * time.Millisecond) // in simulated time
			l.append(a2, 0, 600)
			time.Sleep(300 * time.Millisecond)
			l.append(a2, 0, 600)
		}()
		want("a poll that ends before the fetch", m, 400*time.Millisecond, 0, 400*time.Millisecond)
		want("enough in the end", m, time.Minute, 2, 200*time.Millisecond)
		l.append(a0, 0, 1)
		want("MaxWait after the last poll", m, time.Minute, 1, time.Second)
		l.append(a0, 0, 70<<10)
		want("all that a fetch brings of a partition", join(t, l, kafka.SessionConfig{Topics: []string{"a"},
			MinFetch: 1 << 20, MaxWait: time.Hour}), time.Minute, 7, 0)
		eager := join(t, l, readA)
		poll(eager, time.Minute)
		poll(eager, time.Minute)
		go func() {
			time.Sleep(7 * time.Second)
			l.append(a0, 0, 1)
		}()
		want("any record", eager, time.Minute, 1, 7*time.Second)
	})
}

// An error of one partition is reported and stops no other. Nothing of the partition is left out.
func TestReadError(t *testing.T) {
	l := newLog(topicA)
	for range 3 {
		l.append(a0, 0, 10)
		l.append(a1, 0, 10)
	}
	l.fail = func(p kafka.Partition) error {
		if p == a0 {
			return errBroken
		}
		return nil
	}
	m := join(t, l, kafka.SessionConfig{Topics: []string{"a"}, MinFetch: 1000, MaxWait: time.Hour})
	for n := range 3 {
		batches, err := m.Poll(t.Context()) // does not wait for more, with an error
		if !errors.Is(err, errBroken) || len(batches[a0].Records) != 0 || len(batches[a1].Records) != 3 && n == 0 {
			t.Errorf("poll %d: %v, %v; expected the error and the records of the other partition", n, batches, err)
		}
	}
	l.fail = func(kafka.Partition) error { return nil }
	m.cfg.MinFetch = 1
	if got := offsets(testkit.Value(m.Fetched())(t)[a0]); !slices.Equal(got, []int64{0, 1, 2}) {
		t.Errorf("records %v after the error, expected all", got)
	}
}

// A topic that is created while the session runs is assigned by the next poll, beside the others.
// While committed offsets cannot be read nothing is assigned, and the poll says so.
func TestNewTopic(t *testing.T) {
	l := newLog(topicA)
	m := join(t, l, kafka.SessionConfig{Topics: []string{"b", "a"}})
	l.refuses(errBroken)
	if _, err := m.Fetched(); !errors.Is(err, errBroken) || len(m.assigned) != 0 {
		t.Errorf("%v with %v assigned, expected the error and nothing", err, m.assigned)
	}
	l.refuses(nil)
	testkit.Value(m.Fetched())(t)
	if want := []kafka.Partition{a0, a1, a2}; !slices.Equal(m.assigned, want) {
		t.Errorf("assigned: %v, expected %v", m.assigned, want)
	}
	b0 := kafka.Partition{Topic: "b"}
	l.create(kafka.Topic{Name: "c", Partitions: 1}) // nobody asked for it
	l.create(kafka.Topic{Name: "b", Partitions: 1})
	l.append(b0, 0, 10)
	l.append(b0, 0, 10)
	l.offsets[b0] = 1
	got := testkit.Value(m.Fetched())(t)
	if !slices.Equal(m.assigned, []kafka.Partition{a0, a1, a2, b0}) || !slices.Equal(offsets(got[b0]), []int64{1}) {
		t.Errorf("assigned: %v, records %v; expected the new partition from 1", m.assigned, got)
	}
	ends := testkit.Value(m.Ends(t.Context(), []string{"b", "d"}))(t)
	if len(ends) != 1 || ends[b0] != 2 {
		t.Errorf("ends: %v, expected 2 of %s", ends, b0)
	}
	m.Close()
	m.Close()
	if !slices.Equal(m.gone, m.assigned) {
		t.Errorf("given up: %v, expected %v", m.gone, m.assigned)
	}
	if batches, err := m.Poll(t.Context()); len(batches) > 0 || err != nil {
		t.Errorf("a poll after Close: %v, %v", batches, err)
	}
}

// A gap at the end of a partition, or what nobody can read, is passed once: the poll waits for records
// behind it, and does not turn round and round.
func TestGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(topicA)
		l.append(a0, 5, 10)
		l.append(a0, 7, 0)
		m := join(t, l, readA)
		batch := testkit.Value(m.Poll(t.Context()))(t)[a0]
		if !slices.Equal(offsets(batch), []int64{5}) || batch.End != 13 {
			t.Errorf("records %v up to %d, expected 5 of 13", offsets(batch), batch.End)
		}
		go func() {
			time.Sleep(time.Minute)
			l.append(a0, 0, 10)
		}()
		before := l.waits
		batch = testkit.Value(m.Poll(t.Context()))(t)[a0]
		if n := l.waits - before; !slices.Equal(offsets(batch), []int64{13}) || n > 2 {
			t.Errorf("records %v after %d waits, expected 13 after one or two", offsets(batch), n)
		}
	})
}

// A commit is repeated for ten seconds, also once the process ends.
func TestCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(topicA)
		m := join(t, l, readA)
		ended, end := context.WithCancel(t.Context())
		end()
		l.refuses(errBroken)
		began := time.Now()
		err := m.Commit(ended, map[kafka.Partition]int64{a0: 7})
		if took := time.Since(began); !errors.Is(err, errBroken) || took < 5*time.Second || took > 10*time.Second {
			t.Errorf("%v after %v, expected the error after 5 to 10 s", err, took)
		}
		time.AfterFunc(3*time.Second, func() { l.refuses(nil) })
		testkit.Must(t, m.Commit(ended, map[kafka.Partition]int64{a0: 7}))
		if l.offsets[a0] != 7 {
			t.Errorf("committed: %v", l.offsets)
		}
	})
}

// Whatever is appended, polled, paused, rewound and fails in whatever order, what comes of each
// partition is every record from where it should continue, in order, and nothing while it is paused.
func TestModel(t *testing.T) {
	for seed := range uint64(300) {
		if err := model(t, seed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func model(t *testing.T, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 5))
	l := newLog(topicA)
	parts := []kafka.Partition{a0, a1, a2}
	m := join(t, l, kafka.SessionConfig{Topics: []string{"a"}, MinFetch: int32(1 + rng.IntN(2)*rng.IntN(200_000)),
		MaxWait: time.Hour})
	next, paused := map[kafka.Partition]int64{}, map[kafka.Partition]bool{}
	take := func() (n int, err error) {
		batches, failed := m.Fetched()
		if failed != nil && !errors.Is(failed, errBroken) {
			return 0, failed
		}
		for p, batch := range batches {
			if paused[p] || len(batch.Records) == 0 {
				return 0, fmt.Errorf("%d records of %s, paused: %v", len(batch.Records), p, paused[p])
			}
			n += len(batch.Records)
			for _, r := range l.parts[p].records {
				if r.Offset >= next[p] && len(batch.Records) > 0 {
					if batch.Records[0] != r {
						return 0, fmt.Errorf("record %d of %s came, expected %d", batch.Records[0].Offset, p, r.Offset)
					}
					next[p], batch.Records = r.Offset+1, batch.Records[1:]
				}
			}
		}
		return n, nil
	}
	for range 200 {
		p := parts[rng.IntN(3)]
		switch rng.IntN(8) {
		case 0, 1, 2:
			l.append(p, int64(rng.IntN(2)*rng.IntN(3)), rng.IntN(40_000))
		case 3, 4:
			if _, err := take(); err != nil {
				return err
			}
		case 5:
			if to := rng.Int64N(next[p] + 1); m.partitions[p] != nil && l.parts[p].end > 0 {
				m.Rewind(p, to)
				next[p] = to
			}
		case 6:
			if paused[p] = m.partitions[p] != nil && !paused[p]; paused[p] {
				m.Pause(p)
			} else {
				m.Resume(p)
			}
		case 7:
			bad := parts[rng.IntN(3)]
			l.fail = func(p kafka.Partition) error {
				if p == bad {
					return errBroken
				}
				return nil
			}
			if rng.IntN(2) == 0 {
				l.fail = func(kafka.Partition) error { return nil }
			}
		}
	}
	l.fail = func(kafka.Partition) error { return nil }
	m.cfg.MinFetch = 1
	for _, p := range parts {
		paused[p] = false
		m.Resume(p)
	}
	for {
		n, err := take()
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	for _, p := range parts {
		if list := l.parts[p].records; len(list) > 0 && next[p] != list[len(list)-1].Offset+1 {
			return fmt.Errorf("%s came up to %d, expected all", p, next[p])
		}
	}
	return nil
}
