package commitlog_test

import (
	"maps"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/commitlogtest"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// A log that comes from an engine with positions that do not exist is read, trimmed and continued like any
// other, with the positions that its messages had there; what its records say does not depend on how they
// are divided into batches.
func TestCarried(t *testing.T) {
	disk := embeddedtest.NewDisk(nil)
	s := disk.Open(t, nil)
	at := time.UnixMilli(1_700_000_000_000)
	var want []commitlogtest.Stored
	var list []store.Record
	whole, single := map[string]int{}, map[string]int{}
	fact := func(into map[string]int) func([]byte) { return func(f []byte) { into[string(f)]++ } }
	begin, next := int64(1000), int64(1000)
	for n, gap := range []int64{3, 0, 1, 0, 0, 7} {
		at = at.Add(time.Second)
		messages := []*commitlog.Message{commitlogtest.Message(2 * n), commitlogtest.Message(2*n + 1)}
		base := next + gap
		b := testkit.Value(commitlog.NewBatch(base, at, messages))(t)
		if n == 3 {
			b.Producer = commitlog.Redriven("g", "letter")
		}
		b.Gap = gap
		r := commitlog.CarriedBatch(home, b)
		testkit.Must(t, commitlog.Facts(r.Key, r.Value, fact(whole)))
		list = append(list, r)
		for i, m := range messages {
			want = append(want, commitlogtest.Stored{Position: base + int64(i), Time: at.UnixMilli(), Message: m})
			one := testkit.Value(commitlog.NewBatch(base+int64(i), at, messages[i:i+1]))(t)
			one.Producer = b.Producer
			r := commitlog.CarriedBatch(home, one)
			testkit.Must(t, commitlog.Facts(r.Key, r.Value, fact(single)))
		}
		next = b.End()
	}
	if !maps.Equal(whole, single) || len(whole) != len(want) {
		t.Errorf("%d facts, one message a batch: %d", len(whole), len(single))
	}
	number := commitlog.Published{Producer: "p", Slot: 3,
		Published: producers.Published{Number: 9, Base: next - 2, Time: 5, Count: 2}}
	list = append(list, commitlog.CarriedStart(home, begin), commitlog.CarriedPublished(home, number))
	wait := testkit.Value(records.Of(s).Commit(t.Context(), list))(t)
	testkit.Must(t, wait())
	log := commitlog.NewLocal(records.Of(s), func() time.Time { return at })
	check := func(start int64) {
		t.Helper()
		commitlogtest.Reader(t, log, home, start, next, want)
		_, err := commitlog.Inspect(t.Context(), records.Of(s), func() {}, func(_ part, where, what string) error {
			t.Errorf("%s: %s", where, what)
			return nil
		})
		testkit.Must(t, err)
	}
	check(begin)
	for _, r := range list { // what is read is what was carried
		c := testkit.Value(commitlog.ParseCarried(r.Key, r.Value))(t)
		testkit.Equal(t, "partition", c.Partition, home)
		switch {
		case c.Batch != nil:
			testkit.Equal(t, "batch", string(commitlog.CarriedBatch(home, c.Batch).Value), string(r.Value))
		case c.Published != nil:
			testkit.Equal(t, "number", string(commitlog.CarriedPublished(home, *c.Published).Value), string(r.Value))
		default:
			testkit.Equal(t, "start", c.Start, begin)
		}
	}
	again := []commitlog.Append{{Partition: home, Producer: commitlog.Producer{ID: "p", Number: 9},
		Messages: []*commitlog.Message{{}, {}}}}
	if got := testkit.Value(log.Append(t.Context(), again))(t); !got[0].Replayed || got[0].Base != next-2 {
		t.Errorf("a number that was carried: %+v", got[0])
	}
	start := testkit.Value(log.Trim(t.Context(), home, want[4].Position))(t)
	if want = want[4:]; start > want[0].Position {
		t.Fatalf("trimmed to %d, %d is kept", start, want[0].Position)
	}
	check(start)
	m := commitlogtest.Message(99)
	mustAppend(t, log, home, m)
	want = append(want, commitlogtest.Stored{Position: next, Time: at.UnixMilli(), Message: m})
	next++
	check(start)
	r := commitlog.CarriedBatch(home, testkit.Value(commitlog.NewBatch(5, at, []*commitlog.Message{m}))(t))
	r.Value[len(r.Value)-1] ^= 1
	if err := commitlog.Facts(r.Key, r.Value, func([]byte) { t.Error("a damaged batch says something") }); err == nil {
		t.Error("a damaged batch was read")
	}
}
