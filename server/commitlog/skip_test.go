package commitlog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/commitlogtest"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// skipped is a partition that a test skips in, and what must be seen of it.
type skipped struct {
	t     *testing.T
	disk  *embeddedtest.Disk
	clock *commitlogtest.Clock
	log   *commitlog.Local
	store *embedded.Store
	at    commitlog.Partition
}

func (x *skipped) open() {
	x.store = x.disk.Open(x.t, nil)
	x.log = commitlog.NewLocal(records.Of(x.store), x.clock.Now)
}

func (x *skipped) skip(start, end int64) {
	x.t.Helper()
	testkit.Must(x.t, x.log.Skip(x.t.Context(), []commitlog.Skip{{Partition: x.at, Start: start, End: end}}))
}

func (x *skipped) append(gap int64) commitlog.Appended {
	x.t.Helper()
	x.clock.Advance(time.Second)
	got := testkit.Value(x.log.Append(x.t.Context(), []commitlog.Append{
		{Partition: x.at, Gap: gap, Records: []record.Record{{}, {}}},
	}))(x.t)
	return got[0]
}

// expect compares bounds and the first positions of batches, before and after another opening.
func (x *skipped) expect(what string, start, end int64, bases ...int64) {
	x.t.Helper()
	for range 2 {
		if s, e, err := x.log.Bounds(x.t.Context(), x.at); err != nil || s != start || e != end {
			x.t.Fatalf("%s: bounds are %d and %d, %v; want %d and %d", what, s, e, err, start, end)
		}
		for from := start; from <= end; from++ {
			var want []int64
			for _, base := range bases {
				if base+2 > from {
					want = append(want, base)
				}
			}
			got, err := x.log.Read(x.t.Context(), x.at, from, 1<<20)
			if err != nil || len(got) != len(want) {
				x.t.Fatalf("%s: from %d on there are %d batches, %v; want %v", what, from, len(got), err, want)
			}
			for i, b := range got {
				testkit.Equal(x.t, what, b.Base, want[i])
			}
		}
		after := testkit.Value(x.log.PositionAt(x.t.Context(), x.at, x.clock.Now().Add(time.Hour)))(x.t)
		testkit.Equal(x.t, what+": position of a later time", after, end)
		if len(bases) > 0 {
			last := testkit.Value(x.log.PositionAt(x.t.Context(), x.at, x.clock.Now()))(x.t)
			testkit.Equal(x.t, what+": position of the last batch's time", last, bases[len(bases)-1])
		}
		if _, err := x.log.Read(x.t.Context(), x.at, end+1, 1); !errors.Is(err, commitlog.ErrBeyondEnd) {
			x.t.Errorf("%s: beyond the end: %v", what, err)
		}
		if _, err := x.log.Read(x.t.Context(), x.at, start-1, 1); start > 0 && !errors.Is(err, commitlog.ErrTrimmed) {
			x.t.Errorf("%s: before the start: %v", what, err)
		}
		testkit.Must(x.t, x.store.Close())
		x.open()
	}
	_, err := commitlog.Inspect(x.t.Context(), records.Of(x.store), func() {},
		func(_ commitlog.Partition, where, what string) error { return errors.New(where + ": " + what) })
	if err != nil {
		x.t.Errorf("%s: %v", what, err)
	}
}

func newSkipped(t *testing.T) *skipped {
	x := &skipped{t: t, disk: embeddedtest.NewDisk(nil), clock: commitlogtest.NewClock()}
	x.open()
	x.at.Topic = eventTopic(t, x.log, "topic", 2).Number
	return x
}

// A partition begins and ends where it did elsewhere, with and without records. What follows an end
// without a record has its next position, and readers pass what does not exist.
func TestSkip(t *testing.T) {
	x := newSkipped(t)
	x.skip(0, 0)
	x.expect("nothing is skipped", 0, 0)
	x.skip(500, 500)
	x.expect("a start above 0", 500, 500)
	x.skip(7, 7)
	x.skip(600, 600)
	x.expect("the start is given once, the end rises", 500, 600)
	x.skip(500, 501)
	x.skip(500, 603)
	x.expect("an end", 500, 603)
	testkit.Equal(t, "base behind the end", x.append(0).Base, 603)
	x.expect("a batch behind the end", 500, 605, 603)
	x.skip(0, 607)
	x.expect("an end behind a batch", 500, 607, 603)
	x.skip(0, 609)
	x.expect("the end rises again", 500, 609, 603)
	got := x.append(3)
	if got.Base != 612 || got.Batch.Gap != 7 {
		t.Errorf("a batch with a gap begins with %d behind %d positions that do not exist", got.Base, got.Batch.Gap)
	}
	x.expect("a gap behind the end", 500, 614, 603, 612)
	x.skip(0, 615)
	testkit.Equal(t, "start", testkit.Value(x.log.Trim(t.Context(), x.at, 615))(t), 614)
	x.expect("all is trimmed", 614, 615)
	testkit.Equal(t, "base", x.append(0).Base, 615)
	x.expect("and appended again", 614, 617, 615)
	x.skip(0, 2000)
	x.expect("most does not exist", 614, 2000, 615)
}

// A skip is for the event log; what it cannot keep is refused, and nothing of its list happens.
func TestSkipRefuses(t *testing.T) {
	x := newSkipped(t)
	good := commitlog.Skip{Partition: x.at, Start: 1, End: 1}
	for name, bad := range map[string]commitlog.Skip{
		"a durable topic":       {Partition: home, Start: 1, End: 1},
		"before 0":              {Partition: commitlog.Partition{Topic: x.at.Topic, Number: 1}, Start: -1},
		"an end before a start": {Partition: commitlog.Partition{Topic: x.at.Topic, Number: 1}, Start: 2, End: 1},
		"too far":               {Partition: commitlog.Partition{Topic: x.at.Topic, Number: 1}, End: 1<<62 + 1},
		"twice":                 good,
	} {
		if err := x.log.Skip(t.Context(), []commitlog.Skip{good, bad}); !errors.Is(err, commitlog.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := commitlog.Skip{Partition: commitlog.Partition{Topic: x.at.Topic, Number: 2}, Start: 1, End: 1}
	if err := x.log.Skip(t.Context(), []commitlog.Skip{good, other}); !errors.Is(err, commitlog.ErrNoTopic) {
		t.Errorf("a partition that is not there: %v", err)
	}
	x.expect("after refusals", 0, 0)
}
