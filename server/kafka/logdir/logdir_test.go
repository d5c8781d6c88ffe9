package logdir_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/kafka/logdir/oldbroker"
)

// part is where the tests write.
var part = kafka.Partition{Topic: kafka.ChatsCreated, ID: 3}

func topics() (list []logdir.Topic) {
	for _, topic := range kafka.Topics() {
		list = append(list, logdir.Topic{Name: topic.Name, Partitions: topic.Partitions})
	}
	return list
}

// config has segments of 64 KiB.
func config(dir string, marks map[kafka.Partition]logdir.Mark) oldbroker.Config {
	return oldbroker.Config{Dir: dir, Topics: topics(), SegmentBytes: 64 << 10, Marks: marks}
}

// opened opens a log, and closes it at the end of the test.
func opened(t testing.TB, dir string, marks map[kafka.Partition]logdir.Mark) *oldbroker.Broker {
	t.Helper()
	b := testkit.Value(oldbroker.Open(config(dir, marks)))(t)
	t.Cleanup(b.Close)
	return b
}

// filled makes a log of several segments, with what is known of it.
func filled(t testing.TB, transactions, size int) (dir string, marks map[kafka.Partition]logdir.Mark) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "log")
	b := testkit.Value(oldbroker.Open(config(dir, nil)))(t)
	defer b.Close()
	c := testkit.Value(b.Client(kgo.TransactionalID("test")))(t)
	defer c.Close()
	for i := range transactions {
		var list []*kgo.Record
		for j := range 2 {
			value := fmt.Appendf(nil, "%d/%d ", i, j)
			for len(value) < size {
				value = binary.BigEndian.AppendUint64(value, rand.Uint64())
			}
			list = append(list, &kgo.Record{Topic: part.Topic, Partition: part.ID, Value: value})
		}
		testkit.Must(t, c.BeginTransaction())
		testkit.Must(t, c.ProduceSync(t.Context(), list...).FirstErr())
		testkit.Must(t, c.EndTransaction(t.Context(), kgo.TryCommit))
	}
	return dir, check(t, dir, nil).Marks
}

func check(t testing.TB, dir string, marks map[kafka.Partition]logdir.Mark) *logdir.Report {
	t.Helper()
	r, err := logdir.Check(dir, topics(), marks)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// offsets reads which offsets a broker has records at.
func offsets(t *testing.T, dir string, marks map[kafka.Partition]logdir.Mark) map[int64]string {
	t.Helper()
	b := testkit.Value(oldbroker.Open(config(dir, marks)))(t)
	defer b.Close()
	found := map[int64]string{}
	testkit.Must(t, b.Read(t.Context(), part, func(r *kgo.Record) { found[r.Offset] = string(r.Value) }))
	return found
}

// shown reads the same from the files.
func shown(t *testing.T, r *logdir.Report) map[int64]string {
	t.Helper()
	found := map[int64]string{}
	testkit.Must(t, r.Committed(part, 0, logdir.Reading{
		Batch: func(list []logdir.Entry) error {
			for _, e := range list {
				found[e.Offset] = string(e.Value)
			}
			return nil
		},
		Bad: func(bad *logdir.BatchError) error { return bad },
	}))
	return found
}

// Whatever is done to the files, every record that is not said to be missing is there
// with its offset, nothing else is, and a check of what a repair made of it finds a whole log. A broker on that shows
// what was read of the damaged files.
func TestRandomDamage(t *testing.T) {
	racetest.SkipSerial(t)
	dir, marks := filled(t, 60, 4000)
	whole := offsets(t, copied(t, dir), marks)
	if len(whole) != 120 || marks[part].End != 180 {
		t.Fatalf("%d records to offset %d", len(whole), marks[part].End)
	}
	for round := range 8 {
		seed := uint64(round)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			to := copied(t, dir)
			var did []string
			for range 1 + random.IntN(3) {
				did = append(did, damage(t, random, to))
			}
			report := check(t, to, marks)
			lost := map[int64]bool{}
			for _, d := range report.Damage {
				for _, s := range d.Missing {
					for o := s.From; o < s.To; o++ {
						lost[o] = true
					}
				}
			}
			found := shown(t, report)
			testkit.Must(t, oldbroker.Repair(config(to, marks)))
			again := check(t, to, marks)
			if _, whole := again.Segments(part); !whole || len(again.Damage) > 0 || again.Marks[part].End != 180 ||
				again.Marks[part].Start != 0 {
				t.Fatalf("%v, then %v %+v", did, again.Damage, again.Marks[part])
			}
			if !maps.Equal(found, offsets(t, to, marks)) {
				t.Errorf("%v: a broker shows others than the %d records that were read", did, len(found))
			}
			for o, value := range whole {
				// A record may be there and its transaction's end not: it is dropped.
				if got, ok := found[o]; ok && got != value {
					t.Errorf("%v: offset %d has another record", did, o)
				} else if !ok && !lost[o] && !lost[o+1] && !lost[o+2] {
					t.Errorf("%v: offset %d is not there, and was not said to be missing", did, o)
				}
				delete(found, o)
			}
			if len(found) > 0 {
				t.Errorf("%v: %d records at offsets that had none", did, len(found))
			}
		})
	}
}

func copied(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "log")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// damage does something to one file of the partition.
func damage(t *testing.T, random *rand.Rand, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "partitions", "chats.created-3", "*"))
	if err != nil || len(files) == 0 {
		return "nothing is left"
	}
	path := files[random.IntN(len(files))]
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	what := "cut"
	switch n := random.IntN(6); {
	case n == 0 || len(b) == 0:
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		return "removed " + filepath.Base(path)
	case n == 1:
		b = b[:random.IntN(len(b))]
	case n == 2:
		what = "zeros in"
		from := random.IntN(len(b))
		clear(b[from:min(len(b), from+random.IntN(5000))])
	case n == 3:
		what = "bytes put into"
		at := random.IntN(len(b))
		b = append(append(append([]byte{}, b[:at]...), make([]byte, 1+random.IntN(100))...), b[at:]...)
	default:
		what = "flipped a bit of"
		b[random.IntN(len(b))] ^= 1 << random.IntN(8)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return what + " " + filepath.Base(path)
}

// What was never known to be on the disk may be torn: a power loss does that, and what
// was there is published anyway.
func TestTornEndIsNoDamage(t *testing.T) {
	from, marks := filled(t, 3, 100)
	m := marks[part]
	m.End = 6
	marks[part] = m
	for name, c := range map[string]struct {
		tear func(b []byte) []byte
		end  int64
	}{
		"cut":           {func(b []byte) []byte { return b[:len(b)-3] }, 8},
		"not all of it": {func(b []byte) []byte { b[len(b)-100] ^= 1; return b }, 9}, // before the last marker
	} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t, from)
			path := filepath.Join(dir, "partitions", "chats.created-3", "0.dat")
			b := testkit.Value(os.ReadFile(path))(t)
			testkit.Must(t, os.WriteFile(path, c.tear(b), 0o600))
			r := check(t, dir, marks)
			if len(r.Damage) > 0 || r.Marks[part].End != c.end {
				t.Fatalf("%v, %+v", r.Damage, r.Marks[part])
			}
			if found := shown(t, r); len(found) != 4 || !maps.Equal(found, offsets(t, dir, marks)) {
				t.Fatalf("%d records", len(found))
			}
		})
	}
}

// BenchmarkCheck is what a check costs, before the log moves into the store.
func BenchmarkCheck(b *testing.B) {
	dir, marks := filled(b, 200, 100_000)
	b.SetBytes(testkit.Value(logdir.Sizes(dir))(b)[part])
	for b.Loop() {
		if r := check(b, dir, marks); len(r.Damage) > 0 {
			b.Fatal(r.Damage)
		}
	}
}
