package eventlog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
)

// trimmed is a log whose clock and whose readers the test moves. Its cap is 1 MiB: dead letters have
// 128 KiB of it, search events 256 KiB and their dead letters 64 KiB.
type trimmed struct {
	fixture
	mu        sync.Mutex // while several goroutines use it
	tick      time.Duration
	now       time.Time
	committed map[kafka.Partition]int64 // by each group
	asks      error
}

const searchDeadLetterTopic = "search.dlq"

func newTrimmed(t *testing.T) *trimmed {
	t.Helper()
	x := &trimmed{now: time.UnixMilli(1_800_000_000_000), committed: map[kafka.Partition]int64{}}
	x.fixture = fixture{disk: embeddedtest.NewDisk(nil), clock: func() time.Time {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.now = x.now.Add(x.tick)
		return x.now
	}}
	x.open(t, x.set)
	return x
}

func (x *trimmed) set(c *Config) {
	c.Topics = append(topicsOf(), kafka.Topic{Name: searchDeadLetterTopic, Partitions: 1,
		Kind: kafka.SearchDeadLetterKind})
	for i := range c.Topics {
		c.Topics[i].Configs = map[string]string{"retention.ms": "3600000", "retention.bytes": "1073741824"}
	}
	c.Committed = func(context.Context, string) (map[kafka.Partition]int64, error) {
		return maps.Clone(x.committed), x.asks
	}
}

// fill publishes records of a second each, of about a kilobyte, and returns the end.
func (x *trimmed) fill(t testing.TB, p kafka.Partition, kilobytes int) (end int64) {
	t.Helper()
	rng := rand.NewChaCha8([32]byte{})
	value := make([]byte, 1000)
	for range kilobytes {
		x.now = x.now.Add(time.Second)
		_, _ = rng.Read(value)
		r := plain(p.Topic, p.ID, string(value))
		testkit.Must(t, x.Publish(t.Context(), []Publication{{Records: []*kafka.Record{r}}}))
		end = r.Offset + 1
	}
	return end
}

func (x *trimmed) start(t testing.TB, p kafka.Partition) int64 {
	t.Helper()
	start, _, err := x.Bounds(t.Context(), p)
	testkit.Must(t, err)
	if at, _, err := x.cfg.Log.Bounds(t.Context(), testkit.Value(x.partition(p))(t).id); err != nil || at != start {
		t.Fatalf("%s begins with %d for readers, with %d in the store, %v", p, start, at, err)
	}
	return start
}

func (x *trimmed) trim(t testing.TB) map[kafka.Kind]int64 {
	t.Helper()
	room := testkit.Value(x.Trim(t.Context()))(t)
	if len(room) != 4 {
		t.Fatalf("room %v", room)
	}
	return room
}

// Records go when they are older than their topic's retention, but not before all readers have read
// them, and not one by one.
func TestTrimByAge(t *testing.T) {
	x := newTrimmed(t)
	chats, search := kafka.Partition{Topic: chatsTopic, ID: 1}, kafka.Partition{Topic: searchTopic}
	end := x.fill(t, chats, 60)
	x.fill(t, search, 60) // a minute later
	x.now = x.now.Add(time.Hour - 30*time.Second)
	x.trim(t)
	testkit.Equal(t, "start before anything is read", x.start(t, chats), 0)
	testkit.Equal(t, "start of search events, of which some are 30 s too old", x.start(t, search), 0)
	x.committed[chats] = 17
	x.trim(t)
	testkit.Equal(t, "start after some were read", x.start(t, chats), 17)
	x.committed[chats] = end
	x.trim(t)
	testkit.Equal(t, "start after all were read", x.start(t, chats), end)
	x.now = x.now.Add(8 * time.Second)
	x.trim(t)
	if start := x.start(t, search); start < 35 || start > 40 {
		t.Errorf("search events begin with %d after 38 s", start)
	}
	x.now = x.now.Add(time.Hour)
	if room := x.trim(t); room[kafka.Searches] != 256<<10 || x.Bytes() != 0 {
		t.Errorf("room %v, %d bytes", room, x.Bytes())
	}
	testkit.Equal(t, "end", x.fill(t, chats, 1), end+1)
	x.reopen(t, x.set)
	testkit.Equal(t, "start in the next process", x.start(t, chats), end)
	testkit.Equal(t, "records in the next process", len(x.all(t, chats, 0, 1000)), 1)
}

// A partition has at most retention.bytes, of what was read.
func TestTrimBySize(t *testing.T) {
	x := newTrimmed(t)
	chats := kafka.Partition{Topic: chatsTopic, ID: 1}
	x.set(&x.cfg)
	x.cfg.Topics[0].Configs["retention.bytes"] = "50000"
	testkit.Must(t, x.Add(t.Context(), x.cfg.Topics[0]))
	end := x.fill(t, chats, 100)
	x.trim(t)
	testkit.Equal(t, "start before anything is read", x.start(t, chats), 0)
	x.committed[chats] = end
	x.trim(t)
	if n := x.Bytes(); n > 50_000 || n < 40_000 || x.start(t, chats) == 0 {
		t.Errorf("%d bytes from %d on", n, x.start(t, chats))
	}
}

// The oldest records of a kind go first, over all partitions, and only as many as must. Each kind
// has its share: those of the other kinds, and events of chats, stay.
func TestTrimTakesTheOldestFirst(t *testing.T) {
	x := newTrimmed(t)
	zero, one := kafka.Partition{Topic: searchTopic}, kafka.Partition{Topic: searchTopic, ID: 1}
	chats, deadLetters := kafka.Partition{Topic: chatsTopic}, kafka.Partition{Topic: deadLetterTopic}
	x.fill(t, chats, 1500) // more than the cap, and not read
	x.fill(t, deadLetters, 100)
	x.fill(t, zero, 150)
	x.fill(t, one, 100)
	x.now = x.now.Add(2 * time.Minute)
	room := x.trim(t)
	if start := x.start(t, zero); start < 15 || start > 35 || x.start(t, one) != 0 || x.start(t, deadLetters) != 0 ||
		x.start(t, chats) != 0 {
		t.Errorf("starts %d and %d; letters %d; chats %d", start, x.start(t, one), x.start(t, deadLetters), x.start(t, chats))
	}
	within := func(n int64) bool { return n >= 20_000 && n <= 32_000 }
	if !within(room[kafka.Searches]) || !within(room[kafka.DeadLetterKind]) ||
		room[kafka.SearchDeadLetterKind] != 64<<10 || room[kafka.Chats] < 1<<50 {
		t.Errorf("room %v", room)
	}
	if n := x.Bytes(); n < 1_840_000 || n > 1_950_000 {
		t.Errorf("%d bytes", n)
	}
}

// Search events stay for a minute, so that a reader which is connected can have them. Until then
// their topics refuse more. A clock that was ahead keeps nothing.
func TestYoungSearchEventsStay(t *testing.T) {
	x := newTrimmed(t)
	search := kafka.Partition{Topic: searchTopic, ID: 1}
	x.fill(t, search, 50)
	ahead := x.now
	x.now = ahead.Add(-time.Hour)
	large := plain(search.Topic, 1, string(make([]byte, 700_000)))
	testkit.Must(t, x.Publish(t.Context(), []Publication{{Records: []*kafka.Record{large}}}))
	if room := x.trim(t); room[kafka.Searches] <= 0 || x.start(t, search) != 51 {
		t.Errorf("times of the future: room %v, start %d", room, x.start(t, search))
	}
	x.now = ahead
	x.fill(t, search, 50)
	large = plain(search.Topic, 1, string(make([]byte, 700_000)))
	testkit.Must(t, x.Publish(t.Context(), []Publication{{Records: []*kafka.Record{large}}}))
	x.now = x.now.Add(20 * time.Second)
	if room := x.trim(t); room[kafka.Searches] > 0 || room[kafka.Chats] <= 0 || room[kafka.DeadLetterKind] <= 0 {
		t.Errorf("room %v", room)
	}
	start := x.start(t, search)
	if start < 51+8 || start > 51+11 { // those older than a minute are gone
		t.Errorf("the topic begins with %d", start)
	}
	x.now = x.now.Add(41 * time.Second)
	if room := x.trim(t); room[kafka.Searches] <= 0 || x.start(t, search) != 102 {
		t.Errorf("a minute later: room %v, start %d", room, x.start(t, search))
	}
	testkit.Equal(t, "losses of readers", len(testkit.Value(x.GivenUp(t.Context()))(t)), 0)
}

// A stopped reader of dead letters holds them up to their share. Then the server gives it up for the
// oldest, and says so in a line, in a number, and in a ledger that outlives them.
func TestStoppedReaderIsGivenUp(t *testing.T) {
	x := newTrimmed(t)
	deadLetters := kafka.Partition{Topic: deadLetterTopic}
	x.committed[deadLetters] = 2
	x.fill(t, deadLetters, 122) // of 128 KiB, and more than a trim would leave
	x.trim(t)
	testkit.Equal(t, "start below the share", x.start(t, deadLetters), 2)
	testkit.Equal(t, "lost below the share", x.LostToReaders(), 0)
	end := x.fill(t, deadLetters, 262)
	if room := x.trim(t); room[kafka.DeadLetterKind] <= 0 {
		t.Errorf("room %v", room)
	}
	start := x.start(t, deadLetters)
	if kept := end - start; kept < 105 || kept > 120 {
		t.Errorf("%d records stay", kept)
	}
	want := GivenUp{Group: "readers", Partition: deadLetters, From: 2, To: start, Records: start - 2, At: x.now}
	check := func() {
		t.Helper()
		list := testkit.Value(x.GivenUp(t.Context()))(t)
		if len(list) == 0 || list[len(list)-1] != want {
			t.Errorf("%+v, want %+v", list, want)
		}
	}
	check()
	testkit.Equal(t, "lost", x.LostToReaders(), start-2)
	line := fmt.Sprintf("topic=letters partition=0 from=2 to=%d records=%d", start-1, start-2)
	if s := x.lines.String(); strings.Count(s, "given up") != 1 || !strings.Contains(s, line) || !strings.Contains(s, "group=readers") {
		t.Errorf("%q is not in %s", line, s)
	}
	x.fill(t, deadLetters, 50) // the range grows
	x.trim(t)
	want.To, want.At = x.start(t, deadLetters), x.now
	want.Records = want.To - 2
	x.reopen(t, x.set)
	check()
	x.committed[deadLetters] = want.To + 20 // it reads again, and stops again
	x.fill(t, deadLetters, 150)
	x.trim(t)
	want.From, want.To, want.At = want.To+20, x.start(t, deadLetters), x.now
	want.Records = want.To - want.From
	check()
	testkit.Equal(t, "ranges", len(testkit.Value(x.GivenUp(t.Context()))(t)), 2)
	x.SetReaders([]kafka.Topic{{Name: deadLetterTopic}}) // without readers nobody loses anything
	x.fill(t, deadLetters, 150)
	x.trim(t)
	check()
	testkit.Equal(t, "chats that wait", x.start(t, kafka.Partition{Topic: chatsTopic}), 0)
}

// Events of chats have no cap: those that no reader has read stay, as references, also when they
// exceed the cap three times. They go by age once they were read.
func TestEventsOfChatsHaveNoCap(t *testing.T) {
	x := newTrimmed(t)
	text := strings.Repeat("0123456789", 100)
	at := kafka.Partition{Topic: chatsTopic, ID: commitlog.PartitionOf("chat_a", 4)}
	for first := int64(1); first < 3200; first += 50 {
		var texts []string
		for range 50 {
			texts = append(texts, text)
		}
		x.now = x.now.Add(time.Second)
		testkit.Must(t, x.Publish(t.Context(), []Publication{x.put(t, "chat_a", first, texts...)}))
	}
	x.now = x.now.Add(2 * time.Hour)
	if room := x.trim(t); room[kafka.Chats] < 1<<50 || x.start(t, at) != 0 || x.Bytes() > 3200*60 {
		t.Errorf("room %v, start %d, %d bytes", room, x.start(t, at), x.Bytes())
	}
	_, end, err := x.Bounds(t.Context(), at)
	testkit.Must(t, err)
	testkit.Equal(t, "events that can be read", len(x.all(t, at, 0, 1<<20)), 3200)
	x.committed[at] = end
	x.trim(t)
	if x.Bytes() != 0 || x.start(t, at) != end || x.LostToReaders() != 0 {
		t.Errorf("%d bytes are left, start %d", x.Bytes(), x.start(t, at))
	}
}

// While records are published, read and trimmed, a reader that commits what it has read gets each
// record once: a trim takes nothing that it has not committed, from the tail or from the store.
func TestTrimWhileReading(t *testing.T) {
	for name, limit := range map[string]int{"tail": tailBytes, "store": 0} {
		t.Run(name, func(t *testing.T) {
			x := newTrimmed(t)
			x.tail.limit, x.tick = limit, 24*time.Hour // for each record
			const count = 400
			at := kafka.Partition{Topic: chatsTopic, ID: 2}
			done := make(chan struct{})
			var wg, trims sync.WaitGroup
			wg.Go(func() {
				for n := range count {
					p := Publication{Records: []*kafka.Record{plain(at.Topic, at.ID, fmt.Sprint(n))}}
					if err := x.Publish(t.Context(), []Publication{p}); err != nil {
						t.Error(err)
					}
				}
			})
			wg.Go(func() {
				for next := int64(0); next < count; {
					if err := x.Wait(t.Context(), []kafka.Position{{Partition: at, Offset: next}}); err != nil {
						t.Error(err)
						return
					}
					list, err := x.Read(t.Context(), at, next, 100)
					if err != nil || len(list) == 0 || list[0].Offset != next || string(list[0].Value) != fmt.Sprint(next) {
						t.Errorf("%d records from %d on, %v", len(list), next, err)
						return
					}
					next = list[len(list)-1].Offset + 1
					x.mu.Lock()
					x.committed[at] = next
					x.mu.Unlock()
				}
			})
			trims.Go(func() {
				for {
					if _, err := x.Trim(t.Context()); err != nil {
						t.Error(err)
					}
					select {
					case <-done:
						return
					default:
					}
				}
			})
			wg.Wait()
			close(done)
			trims.Wait()
			x.trim(t)
			testkit.Equal(t, "start", x.start(t, at), count)
			testkit.Equal(t, "unreadable", x.Unreadable(), 0)
		})
	}
}

// unwritable is a store whose ledger cannot be written.
type unwritable struct {
	store.Store
	err error
}

func (u unwritable) BatchWrite(context.Context, []store.Write) error { return u.err }

// Nothing that a reader has not read goes if the ledger cannot say so, or if how far it has read is
// not known; everything else does. What is still there counts.
func TestTrimAfterErrors(t *testing.T) {
	x := newTrimmed(t)
	broken := errors.New("broken")
	deadLetters, search := kafka.Partition{Topic: deadLetterTopic}, kafka.Partition{Topic: searchTopic}
	x.fill(t, deadLetters, 200)
	x.fill(t, search, 400)
	x.now = x.now.Add(2 * time.Minute)
	x.ledger.store = unwritable{x.store, broken}
	room, err := x.Trim(t.Context())
	if !errors.Is(err, broken) || room[kafka.DeadLetterKind] > -60_000 || room[kafka.Searches] <= 0 ||
		x.start(t, deadLetters) != 0 ||
		x.start(t, search) == 0 {
		t.Errorf("without a ledger: room %v, %v", room, err)
	}
	testkit.Equal(t, "lost", x.LostToReaders(), 0)
	x.ledger.store = x.store
	x.asks = broken
	x.fill(t, search, 100)
	x.now = x.now.Add(2 * time.Minute)
	before := x.start(t, search)
	room, err = x.Trim(t.Context())
	if !errors.Is(err, broken) || room == nil || room[kafka.Searches] <= 0 || x.start(t, deadLetters) != 0 ||
		x.start(t, search) <= before {
		t.Errorf("without offsets: room %v, %v", room, err)
	}
	x.asks = nil
	if room := x.trim(t); room[kafka.DeadLetterKind] <= 0 || x.start(t, deadLetters) == 0 {
		t.Errorf("afterwards: room %v", room)
	}
	testkit.Must(t, x.store.Close())
	if room, err := x.Trim(t.Context()); room != nil || err == nil {
		t.Errorf("of a closed store: room %v, %v", room, err)
	}
	x.open(t, x.set)
}

// A range that is recorded twice, because of a crash before the records went, counts once. The
// ledger is bounded, and keeps how many records were lost.
func TestLedger(t *testing.T) {
	x := newFixture(t, nil)
	deadLetters := kafka.Partition{Topic: deadLetterTopic}
	loss := func(group string, from, to int64) []GivenUp {
		return []GivenUp{{Group: group, Partition: deadLetters, From: from, To: to, Records: to - from,
			At: time.UnixMilli(to)}}
	}
	for _, l := range [][]GivenUp{loss("a", 0, 10), loss("b", 0, 5), loss("a", 0, 10), loss("a", 0, 8), loss("a", 5, 12),
		loss("a", 12, 20), loss("a", 30, 40)} {
		testkit.Must(t, x.ledger.add(t.Context(), l))
	}
	want := []GivenUp{loss("a", 0, 20)[0], loss("b", 0, 5)[0], loss("a", 30, 40)[0]}
	testkit.Equal(t, "ledger", testkit.Value(x.GivenUp(t.Context()))(t), want)
	for n := range int64(1200) {
		testkit.Must(t, x.ledger.add(t.Context(), loss("a", 100+2*n, 101+2*n)))
	}
	x.reopen(t, nil)
	list := testkit.Value(x.GivenUp(t.Context()))(t)
	var records int64
	for _, e := range list {
		if e.Group == "a" {
			records += e.Records
		}
	}
	if len(list) != 500 || records != 30+1200 || list[len(list)-1] != loss("a", 2498, 2499)[0] {
		t.Errorf("%d ranges with %d records", len(list), records)
	}
	if list[0] != want[1] && list[0].From != 0 {
		t.Errorf("the oldest is %+v", list[0])
	}
}

// What cannot be read at the start of a partition goes with what follows it, and keeps nothing from
// being trimmed.
func TestTrimWithDamage(t *testing.T) {
	x := newTrimmed(t)
	search := kafka.Partition{Topic: searchTopic}
	x.fill(t, search, 300)
	chats := kafka.Partition{Topic: chatsTopic}
	x.fill(t, chats, 5)
	x.corrupt(t, chats, 1)
	x.corrupt(t, search, 1)
	x.corrupt(t, search, 300)
	x.reopen(t, x.set)
	if room := x.trim(t); room[kafka.Searches] <= 0 || x.start(t, search) < 50 {
		t.Errorf("room %v, start %d", room, x.start(t, search))
	}
	testkit.Equal(t, "start of what was not read", x.start(t, chats), 0)
	x.now = x.now.Add(2 * time.Hour)
	x.committed[chats] = 5
	x.trim(t)
	if n := x.Bytes(); n != 0 || x.start(t, search) != 300 {
		t.Errorf("%d bytes from %d on", n, x.start(t, search))
	}
}
