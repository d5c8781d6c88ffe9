package commitlog_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// used returns the bytes of the files that have the records. The engine's own logs are beside them,
// some of which it keeps to use them again.
func used(t *testing.T, dir string) (n int64) {
	t.Helper()
	files := testkit.Value(filepath.Glob(filepath.Join(dir, "store", "*.sst")))(t)
	for _, name := range files {
		if info, err := os.Stat(name); err == nil { // else it has gone meanwhile
			n += info.Size()
		}
	}
	return n
}

// The disk has the space of what was trimmed and of topics that were deleted again: many small trims
// together, a large one, and a topic. What is not removed stays.
func TestSpaceOfWhatIsRemoved(t *testing.T) {
	dir := t.TempDir()
	s := testkit.Value(embedded.Open(embedded.Options{Dir: dir}))(t)
	defer func() { testkit.Must(t, s.Close()) }()
	l := commitlog.NewLocal(records.Of(s), time.Now)
	rng := rand.NewChaCha8([32]byte{})
	fill := func(p commitlog.Partition, n int) {
		t.Helper()
		for range n {
			payload := make([]byte, 1_000_000)
			_, _ = rng.Read(payload)
			testkit.Value(l.Append(t.Context(), []commitlog.Append{{Partition: p,
				Messages: []*commitlog.Message{{Payload: payload}}}}))(t)
		}
	}
	trimmed, kept, gone := commitlog.Partition{Topic: 1}, commitlog.Partition{Topic: 2}, commitlog.Partition{Topic: 3}
	fill(trimmed, 40)
	fill(kept, 10)
	fill(gone, 40)
	const mb = 1_000_000
	has := func(what string, limit int64) {
		t.Helper()
		testkit.Must(t, l.Reclaim(t.Context(), 30*mb))
		testkit.Eventually(t, what, func() bool { return used(t, dir) < limit }) // files go in the background
	}
	for n := int64(1); n <= 20; n++ { // each too small to be worth it
		testkit.Value(l.Trim(t.Context(), trimmed, n))(t)
		testkit.Must(t, l.Reclaim(t.Context(), 30*mb))
	}
	testkit.Value(l.Trim(t.Context(), trimmed, 38))(t)
	has("the disk has the space of what was trimmed", 56*mb)
	testkit.Must(t, l.Delete(t.Context(), gone.Topic))
	has("the disk has the space of a topic", 18*mb)
	for p, want := range map[commitlog.Partition]int{trimmed: 2, kept: 10} {
		start, end := int64(40-2), int64(40)
		if p == kept {
			start, end = 0, 10
		}
		list := testkit.Value(l.Read(t.Context(), p, start, 100*mb))(t)
		if len(list) != want || list[len(list)-1].End() != end {
			t.Errorf("partition %s has %d batches, want %d", p, len(list), want)
		}
	}
}
