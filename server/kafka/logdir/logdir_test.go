package logdir_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
)

// part is where the tests write, and value the place of a record.
var part = kafka.Partition{Topic: kafka.ChatsCreated, ID: 3}

// filled makes a log of several segments, with what is known of it.
func filled(t testing.TB, transactions, size int) (dir string, marks kafka.Marks) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "log")
	b, err := kafka.OpenBroker(kafka.BrokerConfig{
		Dir: dir, Listen: "127.0.0.1:0", MaxBytes: 1 << 20, // segments of 64 KiB
		Keep: func(_ context.Context, m kafka.Marks) error { marks = m; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	c, err := kafka.NewTransactional(b.Addr(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range transactions {
		var list []*kafka.Record
		for j := range 2 {
			value := fmt.Appendf(nil, "%d/%d ", i, j)
			for len(value) < size {
				value = binary.BigEndian.AppendUint64(value, rand.Uint64())
			}
			list = append(list, &kafka.Record{Topic: part.Topic, Partition: part.ID, Value: value})
		}
		if err := kafka.Transact(t.Context(), c, list); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return dir, marks
}

func topics() (list []logdir.Topic) {
	for _, topic := range kafka.Topics() {
		list = append(list, logdir.Topic{Name: topic.Name, Partitions: topic.Partitions, Configs: topic.Configs})
	}
	return list
}

func check(t testing.TB, dir string, marks kafka.Marks) *logdir.Report {
	t.Helper()
	r, err := logdir.Check(dir, topics(), marks)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// offsets reads which offsets a broker has records at.
func offsets(t *testing.T, dir string, marks kafka.Marks) map[int64]string {
	t.Helper()
	b, err := kafka.OpenBroker(kafka.BrokerConfig{Dir: dir, Listen: "127.0.0.1:0", MaxBytes: 1 << 20, Known: marks})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	found := map[int64]string{}
	if err := b.Read(ctx, part, func(r *kafka.Record) { found[r.Offset] = string(r.Value) }); err != nil {
		t.Fatal(err)
	}
	return found
}

// Whatever is done to the files, every record that is not said to be missing is there
// with its offset, nothing else is, and a second check finds a whole log.
func TestRandomDamage(t *testing.T) {
	racetest.SkipSerial(t)
	dir, marks := filled(t, 60, 4000)
	whole := offsets(t, copied(t, dir), marks)
	if len(whole) != 120 || marks[part].End != 180 {
		t.Fatalf("%d records to offset %d", len(whole), marks[part].End)
	}
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
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
			if err := report.Repair(); err != nil {
				t.Fatal(err)
			}
			if again := check(t, to, marks); len(again.Damage) > 0 || again.Marks[part].End != 180 ||
				again.Marks[part].Start != 0 {
				t.Fatalf("%v, then %v %+v", did, again.Damage, again.Marks[part])
			}
			found := offsets(t, to, marks)
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
	dir, marks := filled(t, 3, 100)
	m := marks[part]
	m.End = 6
	marks[part] = m
	path := filepath.Join(dir, "partitions", "chats.created-3", "0.dat")
	info, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, info.Size()-3)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := check(t, dir, marks)
	if len(r.Damage) > 0 || r.Marks[part].End != 8 {
		t.Fatalf("%v, %+v", r.Damage, r.Marks[part])
	}
	if err := r.Repair(); err != nil {
		t.Fatal(err)
	}
	if found := offsets(t, dir, marks); len(found) != 4 {
		t.Fatalf("%d records", len(found))
	}
}

// BenchmarkCheck is what a check at the start costs.
func BenchmarkCheck(b *testing.B) {
	dir, marks := filled(b, 200, 100_000)
	list, err := logdir.Segments(dir)
	if err != nil {
		b.Fatal(err)
	}
	var n int64
	for _, s := range list {
		n += s.Bytes
	}
	b.SetBytes(n)
	for b.Loop() {
		if r := check(b, dir, marks); len(r.Damage) > 0 {
			b.Fatal(r.Damage)
		}
	}
}
