package eventlog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/store/table"
)

// A call of Publish whose positions are the higher ones may come first: readers find the others in
// the store, in order, and later in memory.
func TestLaterPositionsFirst(t *testing.T) {
	x := newFixture(t, nil)
	at := kafka.Partition{Topic: searchTopic}
	part := testkit.Value(x.partition(at))(t)
	early := []record.Record{{Value: []byte("early 0"), Time: 1}, {Value: []byte("early 1"), Time: 1}}
	pending := testkit.Value(x.cfg.Log.Publish(t.Context(),
		[]commitlog.Append{{Partition: part.id, Records: early}}, nil))(t)
	testkit.Must(t, x.Publish(t.Context(), []Publication{{Records: []*kafka.Record{plain(at.Topic, 0, "late")}}}))
	testkit.Must(t, x.Wait(t.Context(), []kafka.Position{{Partition: at, Offset: 2}}))
	values := func() (list []string) {
		for _, r := range x.all(t, at, 0, 1<<20) {
			list = append(list, fmt.Sprint(r.Offset, string(r.Value)))
		}
		return list
	}
	want := []string{"0early 0", "1early 1", "2late"}
	testkit.Equal(t, "records before the other call is done", values(), want)
	testkit.Must(t, pending.Wait(t.Context()))
	c := &chunk{of: part, records: []*kafka.Record{plain(at.Topic, 0, "early 0"), plain(at.Topic, 0, "early 1")}}
	for i, r := range c.records {
		r.Offset = int64(i)
	}
	part.grow(c)
	x.tail.add(c)
	testkit.Equal(t, "records afterwards", values(), want)
	_, end := part.bounds()
	testkit.Equal(t, "the end", end, 3)
	if got := testkit.Value(x.Read(t.Context(), at, 0, 1<<20))(t); len(got) != 3 || got[0] != c.records[0] {
		t.Errorf("%d records, not those of the tail", len(got))
	}
}

// The tail has at most so many bytes, of the last records; those of an idle partition go first, and
// chunks that were trimmed leave nothing behind.
func TestTailIsBounded(t *testing.T) {
	x := newFixture(t, nil)
	x.tail.limit = 100_000
	publish := func(partition int32, bytes int) *kafka.Record {
		r := plain(searchTopic, partition, string(make([]byte, bytes)))
		testkit.Must(t, x.Publish(t.Context(), []Publication{{Records: []*kafka.Record{r}}}))
		return r
	}
	inTail := func(r *kafka.Record) bool {
		got := testkit.Value(x.Read(t.Context(), kafka.Partition{Topic: r.Topic, ID: r.Partition}, r.Offset, 1))(t)
		if len(got) != 1 || show(got[0]) != show(r) {
			t.Fatalf("read %d records", len(got))
		}
		return got[0] == r
	}
	idle := publish(0, 100)
	testkit.Equal(t, "the first record is in memory", inTail(idle), true)
	var last *kafka.Record
	for n := range 300 {
		if last = publish(1, 1000); x.tail.bytes > 100_000 {
			t.Fatalf("%d bytes after %d records", x.tail.bytes, n)
		}
	}
	testkit.Equal(t, "the first record is in memory", inTail(idle), false)
	testkit.Equal(t, "the last record is in memory", inTail(last), true)
	first := testkit.Value(x.Read(t.Context(), kafka.Partition{Topic: searchTopic, ID: 1}, last.Offset-50, 1))(t)
	testkit.Equal(t, "one of the last 60 is in memory", inTail(first[0]), true)
	if x.tail.bytes < 80_000 {
		t.Errorf("%d bytes in memory", x.tail.bytes)
	}
	part := testkit.Value(x.partition(kafka.Partition{Topic: searchTopic, ID: 1}))(t)
	for range 3000 { // small ones, which are trimmed before the limit is reached
		r := publish(1, 1)
		x.tail.trimmed(part, r.Offset+1)
	}
	if len(x.tail.order) > 2000 || x.tail.bytes > 1000 || x.tail.live > 1 || len(part.chunks) > 0 {
		t.Errorf("%d chunks in order, %d live, %d in the partition, %d bytes", len(x.tail.order), x.tail.live,
			len(part.chunks), x.tail.bytes)
	}
	huge := publish(0, 200_000)
	testkit.Equal(t, "a record above the limit is in memory", inTail(huge), false)
	testkit.Equal(t, "bytes", x.tail.bytes, 0)
}

// While publishers and readers run at the same time, each reader gets every record once, in the
// order of offsets, whether it reads the tail or the store, and sleeps in between: a wake-up that is
// lost leaves it waiting for good.
func TestPublishersAndReaders(t *testing.T) {
	const publishers, calls, readers = 4, 150, 6
	for name, limit := range map[string]int{"tail": tailBytes, "mostly the store": 3000, "store": 0} {
		t.Run(name, func(t *testing.T) {
			x := newFixture(t, nil)
			x.tail.limit = limit
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			total := 0
			var wg sync.WaitGroup
			for n := range publishers {
				rng := rand.New(rand.NewPCG(1, uint64(n)))
				var lists [][]Publication
				for c := range calls {
					p := x.put(t, fmt.Sprint("chat_", n), int64(c+1), "text")
					s := Publication{Records: []*kafka.Record{plain(searchTopic, int32(rng.IntN(2)), fmt.Sprint(n, " ", c))}}
					lists = append(lists, []Publication{p, s})
					total += 2
				}
				wg.Go(func() {
					for _, list := range lists {
						if err := x.Publish(ctx, list); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for n := range readers {
				wg.Go(func() {
					if err := x.follow(ctx, total, n%2 == 0); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for _, topic := range x.Topics() {
				for _, p := range x.index.Load().partitions[topic.Name] {
					testkit.Equal(t, "waiters that are left", len(p.waiting), 0)
				}
			}
		})
	}
}

// follow reads all partitions until it has so many records.
func (x *fixture) follow(ctx context.Context, total int, each bool) error {
	var at []kafka.Position
	for _, topic := range x.Topics() {
		for id := range topic.Partitions {
			at = append(at, kafka.Position{Partition: kafka.Partition{Topic: topic.Name, ID: id}})
		}
	}
	for seen := 0; seen < total; {
		if err := x.Wait(ctx, at); err != nil {
			return fmt.Errorf("%d of %d records: %w", seen, total, err)
		}
		for i := range at {
			size := 1 << 20
			if each {
				size = 1
			}
			list, err := x.Read(ctx, at[i].Partition, at[i].Offset, size)
			if err != nil {
				return err
			}
			for _, r := range list {
				if r.Offset != at[i].Offset || r.Topic != at[i].Topic || r.Timestamp.IsZero() {
					return fmt.Errorf("%s at %+v", show(r), at[i])
				}
				at[i].Offset++
				seen++
			}
		}
	}
	return nil
}

// A waiter is woken by its partitions alone, at once if there is something, and ends with its
// context.
func TestWait(t *testing.T) {
	x := newFixture(t, nil)
	zero, one := kafka.Partition{Topic: searchTopic}, kafka.Partition{Topic: searchTopic, ID: 1}
	publish := func(p kafka.Partition) {
		testkit.Must(t, x.Publish(t.Context(), []Publication{{Records: []*kafka.Record{plain(p.Topic, p.ID, "v")}}}))
	}
	publish(zero)
	testkit.Must(t, x.Wait(t.Context(), []kafka.Position{{Partition: one, Offset: 0}, {Partition: zero, Offset: 0}}))
	broken := errors.New("broken")
	ended, end := context.WithCancelCause(t.Context())
	end(broken)
	for _, at := range [][]kafka.Position{{{Partition: zero, Offset: 1}, {Partition: one, Offset: 0}}, {}} {
		if err := x.Wait(ended, at); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
	}
	done := make(chan error)
	go func() {
		done <- x.Wait(t.Context(), []kafka.Position{{Partition: one, Offset: 3}, {Partition: zero, Offset: 1},
			{Partition: one, Offset: 0}, {Partition: one, Offset: 9}})
	}()
	part := testkit.Value(x.partition(one))(t)
	testkit.Eventually(t, "the waiter is there", func() bool {
		part.mu.Lock()
		defer part.mu.Unlock()
		return len(part.waiting) == 1
	})
	publish(one) // the least of its offsets counts
	testkit.Must(t, <-done)
}

// A record comes exactly while readers begin to wait for it, again and again; the next one comes only
// when all have it. A wake-up that is lost stops the test.
func TestNoWakeUpIsLost(t *testing.T) {
	const rounds, readers = 30_000, 2
	x := newFixture(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	at := kafka.Partition{Topic: searchTopic}
	part := testkit.Value(x.partition(at))(t)
	seen := make(chan struct{})
	var wg sync.WaitGroup
	for n := range readers {
		rng := rand.New(rand.NewPCG(2, uint64(n)))
		others := slices.Repeat([]kafka.Position{{Partition: kafka.Partition{Topic: chatsTopic}}}, 200)
		wg.Go(func() {
			for n := range int64(rounds) {
				// At another moment each time.
				beyond := append(slices.Clip(others[:rng.IntN(len(others))]), kafka.Position{Partition: at, Offset: n})
				if err := x.Wait(ctx, beyond); err != nil {
					t.Errorf("round %d: %v", n, err)
					return
				}
				select {
				case seen <- struct{}{}:
				case <-ctx.Done():
				}
			}
		})
	}
	for n := range int64(rounds) {
		part.grow(&chunk{of: part, base: n, records: []*kafka.Record{{Offset: n}}})
		for range readers {
			select {
			case <-seen:
			case <-ctx.Done():
			}
		}
		part.setStart(n)
	}
	wg.Wait()
}

// corrupt overwrites the batch that ends before an offset.
func (x *fixture) corrupt(t *testing.T, p kafka.Partition, end int64) {
	t.Helper()
	id := testkit.Value(x.partition(p))(t).id
	key := binary.BigEndian.AppendUint64(nil, id.Topic)
	key = append(binary.BigEndian.AppendUint16(key, uint16(id.Number)), 1)
	key = binary.BigEndian.AppendUint64(key, uint64(end-1))
	wait := testkit.Value(records.Of(x.store).Commit(t.Context(), []store.Record{{Key: key, Value: []byte("damaged")}}))(t)
	testkit.Must(t, wait())
}

// What cannot be read is a gap: readers get all else, and each range is logged once, with what
// helps, and counted.
func TestUnreadable(t *testing.T) {
	tick := time.Now()
	x := &fixture{disk: embeddedtest.NewDisk(nil), clock: func() time.Time { return tick }}
	x.open(t, nil)
	chats := kafka.Partition{Topic: chatsTopic, ID: commitlog.PartitionOf("chat_a", 4)}
	search := kafka.Partition{Topic: searchTopic}
	for n := range int64(10) { // positions in pairs
		tick = tick.Add(time.Second)
		p := x.put(t, "chat_a", 2*n+1, "text", "text")
		s := Publication{Records: []*kafka.Record{plain(searchTopic, 0, "v"), plain(searchTopic, 0, "v")}}
		testkit.Must(t, x.Publish(t.Context(), []Publication{p, s}))
	}
	x.corrupt(t, chats, 4)
	x.corrupt(t, chats, 20)
	x.corrupt(t, search, 2)
	x.corrupt(t, search, 4)
	for _, version := range []int64{9, 10, 11, 15} { // offsets 8, 9, 10 and 14
		gone := store.Write{Op: store.OpDelete, Key: table.EventKey("chat_a", version)}
		testkit.Must(t, x.store.BatchWrite(t.Context(), []store.Write{gone}))
	}
	x.reopen(t, nil)
	for _, size := range []int{1, 3000, 1 << 20} {
		offsets := func(p kafka.Partition) (list []int64) {
			for _, r := range x.all(t, p, 0, size) {
				list = append(list, r.Offset)
			}
			return list
		}
		testkit.Equal(t, "events", offsets(chats), []int64{0, 1, 4, 5, 6, 7, 11, 12, 13, 15, 16, 17})
		testkit.Equal(t, "search events", offsets(search)[0], int64(4))
	}
	testkit.Equal(t, "unreadable", x.Unreadable(), 2+2+4+4)
	lines := strings.Split(strings.TrimSpace(x.lines.String()), "\n")
	for what, want := range map[string]int{"cannot be read": len(lines), "server replay publishes them again": 2,
		"the store has lost the event": 2, "from=18 to=19": 1, "from=8 to=10": 1, "from=14 to=14": 1,
		"the records are in no other place": 2, "topic=search partition=0 from=0 to=1": 1} {
		n := 0
		for _, line := range lines {
			if strings.Contains(line, what) {
				n++
			}
		}
		if n != want {
			t.Errorf("%q is in %d lines, not %d:\n%s", what, n, want, x.lines.String())
		}
	}
	if offset, _, err := x.Newest(t.Context(), chats); err != nil || offset != 16 {
		t.Errorf("the newest is %d, %v", offset, err)
	}
	broken := errors.New("broken")
	x.reopen(t, func(c *Config) { c.Store = failing{c.Store, broken} })
	if got, err := x.Read(t.Context(), chats, 4, 100); len(got) > 0 || !errors.Is(err, broken) {
		t.Errorf("%d records, %v", len(got), err)
	}
	testkit.Equal(t, "unreadable for another reason", x.Unreadable(), 0)
}

// However much cannot be read, the lines about it are bounded, and all of it is counted.
func TestLinesAboutTheUnreadable(t *testing.T) {
	x := newFixture(t, nil)
	for n := range int64(1500) {
		part := testkit.Value(x.partition(kafka.Partition{Topic: searchTopic, ID: int32(n % 2)}))(t)
		x.lose(part, span{2 * n, 2*n + 1}, store.ErrCorrupt)
	}
	if n := strings.Count(x.lines.String(), "\n"); n != 1001 || x.Unreadable() != 1500 {
		t.Errorf("%d lines about %d records", n, x.Unreadable())
	}
}

// Ranges are merged, count each position once, and are bounded.
func TestSpans(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var list []span
		known := map[int64]bool{}
		for range 30 {
			s := span{from: rng.Int64N(100)}
			s.to = s.from + 1 + rng.Int64N(9)
			var want int64
			for i := s.from; i < s.to; i++ {
				if !known[i] {
					known[i] = true
					want++
				}
			}
			var got int64
			if list, got = add(list, s); got != want {
				t.Fatalf("%d new positions with %+v, want %d", got, s, want)
			}
			sum := int64(0)
			for i, s := range list {
				if sum += s.to - s.from; i > 0 && list[i-1].to >= s.from {
					t.Fatalf("%+v", list)
				}
			}
			testkit.Equal(t, "positions", sum, int64(len(known)))
		}
	}
	var list []span
	for n := range int64(1500) {
		list, _ = add(list, span{2 * n, 2*n + 1})
	}
	if len(list) != 1000 || !slices.Contains(list, span{2998, 2999}) {
		t.Errorf("%d ranges", len(list))
	}
}
