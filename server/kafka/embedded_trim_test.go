package kafka

import (
	"context"
	"crypto/rand"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/parley-chat/parley/server/kafka/logdir"
)

// fillLog publishes about n bytes to a partition.
func fillLog(t *testing.T, b *Broker, topic string, partition int32, n int) {
	t.Helper()
	c, err := NewProducer(b.Addr(), b.Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for ; n > 0; n -= 40_000 {
		value := make([]byte, 40_000)
		_, _ = rand.Read(value)
		if err := Publish(limited(t), c, &Record{Topic: topic, Partition: partition, Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func bounds(b *Broker, topic string, partition int32) (start, end int64) {
	p := b.cluster.PartitionInfo(topic, partition)
	return p.LogStartOffset, p.HighWatermark
}

// The oldest goes first, over all partitions, and only as much as must go; what a group
// has not read stays, and so does the end of each partition.
func TestTrimTakesTheOldestFirst(t *testing.T) {
	b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), MaxBytes: 2 << 20, Groups: []string{"reader"}})
	fillLog(t, b, ChatsCreated, 3, 1_200_000) // the oldest
	fillLog(t, b, ChatsCreated, 4, 1_200_000)
	if full, err := b.Trim(); !full || err != nil {
		t.Fatalf("with unread records: %v, %v", full, err)
	}
	if start, _ := bounds(b, ChatsCreated, 3); start != 0 {
		t.Fatalf("trimmed to %d what nobody has read", start)
	}
	b.cfg.Groups = nil
	if full, err := b.Trim(); full || err != nil {
		t.Fatalf("trim: %v, %v", full, err)
	}
	if n := b.Bytes(); n > 2<<20 || n < 1_700_000 {
		t.Errorf("%d bytes are left of a cap of 2 MiB", n)
	}
	if start, end := bounds(b, ChatsCreated, 3); start == 0 || start >= end {
		t.Errorf("the oldest partition begins at %d of %d", start, end)
	}
	if start, _ := bounds(b, ChatsCreated, 4); start != 0 {
		t.Errorf("a younger partition begins at %d", start)
	}
	// However small the cap, something of each partition stays.
	b.cfg.MaxBytes = 1
	if full, err := b.Trim(); !full || err != nil {
		t.Fatalf("trim to nothing: %v, %v", full, err)
	}
	for _, p := range []int32{3, 4} {
		if start, end := bounds(b, ChatsCreated, p); start >= end {
			t.Errorf("partition %d is empty: %d of %d", p, start, end)
		}
	}
}

// Dead letters have an eighth of the cap, whoever has read them, and take nothing from
// events.
func TestTrimBoundsDeadLetters(t *testing.T) {
	b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), MaxBytes: 4 << 20, Groups: []string{"reader"}})
	fillLog(t, b, DeadLetters, 1, 1_500_000)
	fillLog(t, b, ChatsCreated, 3, 400_000)
	if full, err := b.Trim(); full || err != nil {
		t.Fatalf("trim: %v, %v", full, err)
	}
	list, err := logdir.Segments(b.cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var letters int64
	for _, s := range list {
		if s.Topic == DeadLetters {
			letters += s.Bytes
		}
	}
	if letters > 512<<10 || letters < 300_000 {
		t.Errorf("dead letters take %d bytes of 512 KiB", letters)
	}
	if start, _ := bounds(b, ChatsCreated, 3); start != 0 {
		t.Errorf("events were trimmed to %d", start)
	}
}

// What was trimmed is not missing at the next start, even if it was killed between the
// note of it and the trim.
func TestTrimIsNoDamage(t *testing.T) {
	dir := t.TempDir()
	var kept Marks
	keep := func(_ context.Context, m Marks) error { kept = m; return nil }
	b := openBrokerWith(t, BrokerConfig{Dir: dir, MaxBytes: 1 << 20, Keep: keep})
	fillLog(t, b, ChatsCreated, 3, 1_500_000)
	before := crash(t, dir)
	if _, err := b.Trim(); err != nil {
		t.Fatal(err)
	}
	start, end := bounds(b, ChatsCreated, 3)
	if m := kept[Partition{Topic: ChatsCreated, ID: 3}]; start == 0 || m.Start != start || m.End != end || m.Since == 0 {
		t.Fatalf("kept %+v of %d to %d", m, start, end)
	}
	for _, dir := range []string{before, crash(t, dir)} {
		again := openBrokerWith(t, BrokerConfig{Dir: dir, MaxBytes: 1 << 20, Known: kept, Damaged: func(list []Damage) error {
			t.Error(list)
			return nil
		}})
		if _, e := bounds(again, ChatsCreated, 3); e != end {
			t.Errorf("the end was %d and is %d", end, e)
		}
	}
}

// Nobody else on the machine can read the log.
func TestLogIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	b := openBrokerWith(t, BrokerConfig{Dir: dir})
	fillLog(t, b, ChatsCreated, 3, 1)
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s is %o", path, info.Mode().Perm())
		}
		files++
		return nil
	})
	if err != nil || files < 5 {
		t.Errorf("%d files, %v", files, err)
	}
}

// 512 MB, or a sixteenth of the memory.
func TestCapOfTheLog(t *testing.T) {
	for memory, want := range map[int64]int64{0: 512 << 20, 1 << 30: 64 << 20, 8 << 30: 512 << 20, 64 << 30: 512 << 20} {
		if got := logdir.MaxBytes(memory); got != want {
			t.Errorf("%d bytes of memory: %d, not %d", memory, got, want)
		}
	}
	if n := logdir.SegmentBytes(512 << 20); n != 2<<20 {
		t.Errorf("segments of %d bytes", n)
	}
}
