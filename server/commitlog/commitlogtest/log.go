package commitlogtest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parley-chat/parley/server/commitlog"
)

// Clock is a clock that tests set.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock begins now: brokers of Kafka refuse times that are far from theirs.
func NewClock() *Clock { return &Clock{now: time.Now().Truncate(time.Millisecond)} }

// Now returns the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance sets the clock on, or back.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// mostPartitions is how many partitions a durable topic is configured with at most.
const mostPartitions = 256

// Open opens an empty log whose batches get their time from a clock.
type Open func(t *testing.T, now func() time.Time) commitlog.Log

// Log tests the contract of a Log whose positions follow each other, and which trims whole
// batches.
func Log(t *testing.T, open Open) {
	t.Helper()
	run(t, open, false)
}

// Sparse tests the contract of a Log in which some positions do not exist, and which trims
// up to any position.
func Sparse(t *testing.T, open Open) {
	t.Helper()
	run(t, open, true)
}

func run(t *testing.T, open Open, sparse bool) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *fixture){
		"appends":         appends,
		"round trip":      roundTrip,
		"order":           order,
		"times":           times,
		"many partitions": manyPartitions,
		"repetitions":     repetitions,
		"old numbers":     oldNumbers,
		"requests":        requests,
		"forgotten parts": forgottenParts,
		"unhashed":        unhashed,
		"addressed":       addressed,
		"trim":            trim,
		"delete":          deleted,
		"size":            size,
		"bad input":       badInput,
	} {
		t.Run(name, func(t *testing.T) {
			clock := NewClock()
			f := &fixture{Log: open(t, clock.Now), Clock: clock, at: commitlog.Partition{Topic: 7}, sparse: sparse}
			for number := uint64(6); number <= 8; number++ {
				partitions := int32(2)
				if name == "many partitions" && number == f.at.Topic {
					partitions = mostPartitions
				}
				f.create(t, number, partitions)
			}
			test(t, f)
		})
	}
}

// fixture is a log and what must be in one of its partitions.
type fixture struct {
	commitlog.Log
	*Clock
	at     commitlog.Partition
	stored []Stored
	end    int64
	sparse bool
}

func (f *fixture) create(t *testing.T, number uint64, partitions int32) {
	t.Helper()
	err := f.Create(t.Context(), commitlog.Topic{Number: number, Name: fmt.Sprint("topic-", number),
		Partitions: partitions, Retention: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
}

// follows reports whether a batch that begins with a position is the next behind an end.
func (f *fixture) follows(base, end int64) bool { return base == end || f.sparse && base > end }

// Message is a message that is unlike others. Some have a time to live, some wait, some have an id.
func Message(n int) *commitlog.Message {
	m := &commitlog.Message{Key: fmt.Sprint("key-", n%5), Type: "made", Payload: []byte(fmt.Sprintf("message %d", n))}
	if n%4 == 1 {
		m.Ttl = durationpb.New(time.Second + time.Duration(n)*7*time.Millisecond)
	}
	if n%5 == 1 {
		m.DeduplicationId = fmt.Sprint("id-", n)
	}
	if n%3 == 1 {
		m.Delay = durationpb.New(time.Duration(1+n) * time.Millisecond)
	}
	return m
}

func messages(from, count int) (list []*commitlog.Message) {
	for i := range count {
		list = append(list, Message(from+i))
	}
	return list
}

func (f *fixture) append(t *testing.T, list []*commitlog.Message) {
	t.Helper()
	got, err := f.Append(t.Context(), []commitlog.Append{{Partition: f.at, Messages: list}})
	if err != nil {
		t.Fatal(err)
	}
	a := got[0]
	if !f.follows(a.Base, f.end) || a.Count != len(list) || a.Replayed || a.Batch.Base != a.Base {
		t.Fatalf("appended %+v, want base %d", a, f.end)
	}
	if a.Batch.Gap != 0 && a.Batch.Gap != a.Base-f.end {
		t.Fatalf("before %d there is a gap of %d, the end was %d", a.Base, a.Batch.Gap, f.end)
	}
	f.end = a.Base
	for _, m := range list {
		f.stored = append(f.stored, Stored{f.end, got[0].Batch.Time, m})
		f.end++
	}
}

func (f *fixture) check(t *testing.T, start int64) {
	t.Helper()
	for len(f.stored) > 0 && f.stored[0].Position < start {
		f.stored = f.stored[1:]
	}
	Reader(t, f, f.at, start, f.end, f.stored)
}

func appends(t *testing.T, f *fixture) {
	f.check(t, 0)
	for n := range 20 {
		f.append(t, messages(100*n, 1+n%7))
		f.Advance(time.Duration(n%3) * time.Millisecond)
	}
	f.check(t, 0)
}

func roundTrip(t *testing.T, f *fixture) {
	f.append(t, []*commitlog.Message{
		{},
		{Key: "k", Type: "t", CorrelationId: "c", Headers: map[string]string{"a": "1", "": "none", "empty": ""},
			Payload: []byte{0, 255}},
		{Payload: make([]byte, 1<<20)},
		{Key: strings.Repeat("ü", 500), Headers: map[string]string{"long": strings.Repeat("x", 4096)}},
	})
	f.check(t, 0)
	got, err := f.Read(t.Context(), f.at, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	at := int(1 - got[0].Base) // the batch may begin with what was asked for
	if v, ok := got[0].Header(at, ""); !ok || v != "none" {
		t.Errorf("the header without a name is %q", v)
	}
	if v, ok := got[0].Header(at, "empty"); !ok || v != "" {
		t.Errorf("the empty header is %q, %v", v, ok)
	}
}

// order checks that positions follow the order of Begin, even before any caller has waited.
func order(t *testing.T, f *fixture) {
	var pending []*commitlog.Pending
	end := int64(0)
	for n := range 50 {
		p, err := f.Begin(t.Context(), []commitlog.Append{{Partition: f.at, Messages: messages(n, 1)}})
		if err != nil {
			t.Fatal(err)
		}
		if base := p.Appended[0].Base; !f.follows(base, end) {
			t.Fatalf("append %d got position %d", n, base)
		}
		end = p.Appended[0].Base + 1
		pending = append(pending, p)
	}
	for n := len(pending) - 1; n >= 0; n-- {
		if err := pending[n].Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, e, err := f.Bounds(t.Context(), f.at); err != nil || e != end {
			t.Fatalf("the last is durable, the end is %d, %v", e, err)
		}
	}
}

// times checks that the times of a partition never go back, even if the clock does.
func times(t *testing.T, f *fixture) {
	last := int64(0)
	for n, step := range []time.Duration{0, 5, -3, 0, -1000, 2000} {
		f.Advance(step * time.Millisecond)
		f.append(t, messages(n, 2))
		at := f.stored[len(f.stored)-1].Time
		if at < last || at < f.Now().UnixMilli() {
			t.Errorf("step %d: time %d after %d", n, at, last)
		}
		last = at
	}
	f.check(t, 0)
}

func manyPartitions(t *testing.T, f *fixture) {
	var list []commitlog.Append
	for n := int32(mostPartitions) - 1; n >= 0; n-- {
		p := commitlog.Partition{Topic: 7, Number: n}
		list = append(list, commitlog.Append{Partition: p, Messages: messages(int(n), 2)})
	}
	list = append(list, list[0]) // the same partition again
	got, err := f.Append(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range got {
		base := int64(0)
		if i == len(got)-1 {
			base = 2
		}
		if a.Base != base || a.Count != 2 {
			t.Errorf("partition %s: base %d", list[i].Partition, a.Base)
		}
	}
	for p, want := range map[commitlog.Partition]int64{
		{Topic: 7, Number: 1}: 2, {Topic: 7, Number: 255}: 4, {Topic: 6}: 0, {Topic: 8}: 0,
	} {
		if _, end, err := f.Bounds(t.Context(), p); err != nil || end != want {
			t.Errorf("partition %s ends with %d (%v), want %d", p, end, err, want)
		}
	}
}

func (f *fixture) publish(t *testing.T, number int64, count int) commitlog.Appended {
	t.Helper()
	got, err := f.Append(t.Context(), []commitlog.Append{{
		Partition: f.at, Messages: messages(int(number), count), Producer: commitlog.Producer{ID: "p", Number: number},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

func repetitions(t *testing.T, f *fixture) {
	first := map[int64]int64{}
	for number := int64(10); number < 10+2*commitlog.ProducerWindow; number += 2 {
		a := f.publish(t, number, 3)
		if a.Replayed {
			t.Fatalf("number %d is new", number)
		}
		first[number] = a.Base
	}
	_, end, err := f.Bounds(t.Context(), f.at)
	if limit := int64(3 * commitlog.ProducerWindow); err != nil || !f.follows(end, limit) {
		t.Fatalf("the end is %d, %v", end, err)
	}
	for number, base := range first {
		if a := f.publish(t, number, 3); !a.Replayed || a.Base != base || a.Count != 3 || a.Batch != nil {
			t.Errorf("number %d again is %+v, want base %d", number, a, base)
		}
	}
	if _, got, err := f.Bounds(t.Context(), f.at); err != nil || got != end {
		t.Errorf("the end is %d (%v), want %d", got, err, end)
	}
	again := commitlog.Append{Partition: f.at, Messages: messages(0, 3), Producer: commitlog.Producer{ID: "p", Number: 12}}
	other := again
	other.Producer.ID = "q"
	got, err := f.Append(t.Context(), []commitlog.Append{again, other, other})
	if err != nil || !got[0].Replayed || got[1].Replayed || !f.follows(got[1].Base, end) || !got[2].Replayed ||
		got[2].Base != got[1].Base {
		t.Errorf("one repeated, one new and that again: %+v, %v", got, err)
	}
	end = got[1].Base + 3
	again.Messages = messages(0, 2)
	other.Producer.Number = 99
	if _, err := f.Append(t.Context(), []commitlog.Append{other, again}); !errors.Is(err, commitlog.ErrProducerReuse) {
		t.Errorf("a number with another count: %v", err)
	}
	if _, e, err := f.Bounds(t.Context(), f.at); err != nil || e != end {
		t.Errorf("something of a refused append was stored: the end is %d, not %d (%v)", e, end, err)
	}
	if a := f.publish(t, 9999, 1); !f.follows(a.Base, end) {
		t.Errorf("base %d, the end was %d", a.Base, end)
	}
	if got, err = f.Append(t.Context(), []commitlog.Append{other}); err != nil || got[0].Replayed {
		t.Errorf("what was refused is remembered: %+v, %v", got, err)
	}
}

func oldNumbers(t *testing.T, f *fixture) {
	for n := range int64(commitlog.ProducerWindow) {
		f.publish(t, 100+n, 1)
	}
	a := commitlog.Append{Partition: f.at, Messages: messages(0, 1), Producer: commitlog.Producer{ID: "p", Number: 99}}
	if _, err := f.Append(t.Context(), []commitlog.Append{a}); !errors.Is(err, commitlog.ErrProducerNumber) {
		t.Errorf("older than all that is remembered: %v", err)
	}
	f.publish(t, 1000, 1) // 100 is forgotten
	a.Producer.Number = 100
	if _, err := f.Append(t.Context(), []commitlog.Append{a}); !errors.Is(err, commitlog.ErrProducerNumber) {
		t.Errorf("a forgotten number: %v", err)
	}
	if a := f.publish(t, 500, 1); a.Replayed { // among those that are remembered, and new
		t.Error("a number that was never published is a repetition")
	}
}

// addressed checks that a reader of a batch learns which single group it is for, regardless
// of the batches beside it.
func addressed(t *testing.T, f *fixture) {
	var list []commitlog.Append
	var want []commitlog.Address
	for n, group := range []string{"", "g", "g", "", "", "h", "g", ""} {
		a := commitlog.Append{Partition: f.at, Messages: messages(n, 1)}
		to := commitlog.Address("")
		if group != "" {
			a.Producer, to = commitlog.Redriven(group, fmt.Sprint("letter ", n)), commitlog.AddressOf(group)
		}
		list, want = append(list, a), append(want, to)
	}
	for range 2 { // the second time all that are addressed are repetitions
		done, err := f.Append(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range done {
			if a.Batch != nil && a.Batch.Address() != want[i] {
				t.Errorf("append %d is for %q, not %q", i, a.Batch.Address(), want[i])
			}
		}
		_, f.end, err = f.Bounds(t.Context(), f.at)
		if err != nil {
			t.Fatal(err)
		}
	}
	want = append(want, "", "", "", "") // those that are not are stored again
	n := 0
	for at := int64(0); at < f.end; {
		batches, err := f.Read(t.Context(), f.at, at, 1<<20)
		if err != nil || len(batches) == 0 {
			t.Fatal(batches, err)
		}
		for _, b := range batches {
			for range b.Count() {
				if n == len(want) || b.Address() != want[n] {
					t.Fatalf("message %d is for %q", n, b.Address())
				}
				n++
			}
			at = b.End()
		}
	}
	if n != len(want) {
		t.Errorf("%d messages, not %d", n, len(want))
	}
}

func trim(t *testing.T, f *fixture) {
	for n := range 10 {
		f.append(t, messages(10*n, 10))
		f.Advance(time.Millisecond)
	}
	all := f.stored
	at := func(n int) int64 { // position of a message, or behind the last
		if n < len(all) {
			return all[n].Position
		}
		return f.end
	}
	for _, step := range []struct {
		before int
		start  int // of a log that trims whole batches
		exact  int // of one that trims up to any position
	}{
		{0, 0, 0}, {9, 0, 9}, {10, 10, 10}, {5, 10, 10}, {35, 30, 35}, {99, 90, 99}, {1000, 100, 100}, {1000, 100, 100},
	} {
		before, want := at(step.before), at(step.start)
		if f.sparse {
			want = at(step.exact)
		}
		if step.before > len(all) {
			before += 900
		}
		start, err := f.Trim(t.Context(), f.at, before)
		if err != nil || start != want {
			t.Fatalf("trimmed before %d: start is %d (%v), want %d", before, start, err, want)
		}
		f.check(t, start)
	}
	end := f.end
	f.append(t, messages(1000, 3))
	f.check(t, end)
}

func deleted(t *testing.T, f *fixture) {
	other := commitlog.Append{Partition: commitlog.Partition{Topic: 8}, Messages: messages(0, 5)}
	if _, err := f.Append(t.Context(), []commitlog.Append{other}); err != nil {
		t.Fatal(err)
	}
	f.append(t, messages(0, 5))
	f.publish(t, 1, 1)
	if err := f.Delete(t.Context(), f.at.Topic); err != nil {
		t.Fatal(err)
	}
	f.stored, f.end = nil, 0
	f.check(t, 0)
	f.create(t, f.at.Topic, 2)
	f.check(t, 0)
	if _, end, err := f.Bounds(t.Context(), other.Partition); err != nil || end != 5 {
		t.Errorf("another topic ends with %d, %v", end, err)
	}
	if a := f.publish(t, 1, 1); a.Replayed || a.Base != 0 {
		t.Errorf("after the deletion: %+v", a)
	}
}

func badInput(t *testing.T, f *fixture) {
	good := messages(0, 1)
	one := func(p commitlog.Partition, producer commitlog.Producer, list ...*commitlog.Message) []commitlog.Append {
		return []commitlog.Append{{Partition: p, Messages: list, Producer: producer}}
	}
	var nobody commitlog.Producer
	for name, c := range map[string]struct {
		list []commitlog.Append
		want error
	}{
		"nothing":            {nil, commitlog.ErrInvalid},
		"no messages":        {one(f.at, nobody), commitlog.ErrInvalid},
		"negative partition": {one(commitlog.Partition{Topic: 1, Number: -1}, nobody, good...), commitlog.ErrInvalid},
		"partition 1024":     {one(commitlog.Partition{Topic: 1, Number: 1024}, nobody, good...), commitlog.ErrInvalid},
		"topic too high":     {one(commitlog.Partition{Topic: 1 << 63}, nobody, good...), commitlog.ErrInvalid},
		"too many messages":  {one(f.at, nobody, messages(0, 10_001)...), commitlog.ErrTooLarge},
		"too many bytes":     {one(f.at, nobody, &commitlog.Message{Payload: make([]byte, 8<<20)}), commitlog.ErrTooLarge},
		"text is not UTF-8":  {one(f.at, nobody, &commitlog.Message{Key: "\xff"}), commitlog.ErrInvalid},
		"header is not UTF-8": {one(f.at, nobody, &commitlog.Message{Headers: map[string]string{"a": "\xff"}}),
			commitlog.ErrInvalid},
		"long producer":   {one(f.at, commitlog.Producer{ID: strings.Repeat("p", 256)}, good...), commitlog.ErrInvalid},
		"negative number": {one(f.at, commitlog.Producer{ID: "p", Number: -1}, good...), commitlog.ErrInvalid},
		"no producer": {[]commitlog.Append{{Partition: f.at, Messages: good, Request: commitlog.HashOf(good)}},
			commitlog.ErrInvalid},
		"only a number of nobody's": {[]commitlog.Append{{Partition: f.at, Request: commitlog.HashOf(good)}},
			commitlog.ErrInvalid},
		"one of two": {append(one(f.at, nobody, good...), commitlog.Append{Partition: f.at}), commitlog.ErrInvalid},
	} {
		if _, err := f.Append(t.Context(), c.list); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := f.Bounds(t.Context(), commitlog.Partition{Number: 1024}); !errors.Is(err, commitlog.ErrInvalid) {
		t.Errorf("bounds of partition 1024: %v", err)
	}
	f.check(t, 0)
}
