package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/internal/racetest"
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

// commit commits an offset of a consumer group.
func commit(t *testing.T, b *Broker, group, topic string, partition int32, offset int64) {
	t.Helper()
	c, err := NewProducer(b.Addr(), b.Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, partition, offset, -1)
	if err := kadm.NewClient(c).CommitAllOffsets(limited(t), group, offsets); err != nil {
		t.Fatal(err)
	}
}

// readAll commits for each group of Parley the ends of the topics that it reads, and of no
// others.
func readAll(t *testing.T, b *Broker) {
	t.Helper()
	for group, topics := range map[string][]string{
		"fanout-workers":    {"messages.persisted", "memberships.changed", "chats.created"},
		"projector-workers": {"messages.persisted", "dead_letters"},
	} {
		for _, topic := range topics {
			for _, p := range b.cluster.PartitionInfos(topic) {
				if p.HighWatermark > 0 {
					commit(t, b, group, topic, p.Partition, p.HighWatermark)
				}
			}
		}
	}
}

func trim(t *testing.T, b *Broker) map[Kind]int64 {
	t.Helper()
	room, err := b.Trim()
	if err != nil || len(room) != 4 {
		t.Fatalf("%v, %v", room, err)
	}
	return room
}

// age sets the times of the segments of a log an hour back.
func age(t *testing.T, b *Broker) {
	t.Helper()
	at := time.Now().Add(-time.Hour)
	files, err := filepath.Glob(filepath.Join(b.cfg.Dir, "partitions", "*", "*.dat"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.Chtimes(f, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// bytesOf is how much of the log the topics of a kind have.
func bytesOf(t *testing.T, b *Broker, kind Kind) (n int64) {
	t.Helper()
	list, err := logdir.Segments(b.cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if i := slices.IndexFunc(Topics(), func(t Topic) bool { return t.Name == s.Topic }); Topics()[i].Kind == kind {
			n += s.Bytes
		}
	}
	return n
}

// The oldest goes first, over all partitions, and only as much as must go; the end of each
// partition stays.
func TestTrimTakesTheOldestFirst(t *testing.T) {
	b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), MaxBytes: 2 << 20})
	fillLog(t, b, ChatsCreated, 3, 1_200_000) // the oldest
	fillLog(t, b, ChatsCreated, 4, 1_200_000)
	readAll(t, b)
	if room := trim(t, b); room[Chats] <= 0 {
		t.Fatalf("no room is left: %v", room)
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
	// However small the cap, something of each partition stays, and there is room for more.
	b.cfg.MaxBytes = 1
	if room := trim(t, b); room[Chats] <= 0 {
		t.Fatalf("no room is left of a tiny cap: %v", room)
	}
	for _, p := range []int32{3, 4} {
		if start, end := bounds(b, ChatsCreated, p); start >= end {
			t.Errorf("partition %d is empty: %d of %d", p, start, end)
		}
	}
}

// Events of chats are trimmed only up to where every group that reads their topic has
// committed, whichever group is behind, and not at all before it has read anything.
func TestTrimWaitsForEveryReader(t *testing.T) {
	for _, topic := range Topics() {
		for _, behind := range topic.Readers {
			if topic.Kind != Chats {
				continue
			}
			t.Run(topic.Name+"/"+behind, func(t *testing.T) {
				b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), MaxBytes: 1 << 20})
				fillLog(t, b, topic.Name, 1, 1_500_000)
				_, end := bounds(b, topic.Name, 1)
				for _, group := range topic.Readers {
					if group != behind {
						commit(t, b, group, topic.Name, 1, end)
					}
				}
				if room := trim(t, b); room[Chats] > 0 {
					t.Errorf("a log full of unread events has room: %v", room)
				}
				if start, _ := bounds(b, topic.Name, 1); start != 0 {
					t.Fatalf("trimmed to %d what %s has not read", start, behind)
				}
				commit(t, b, behind, topic.Name, 1, end/4)
				trim(t, b)
				if start, _ := bounds(b, topic.Name, 1); start == 0 || start > end/4 {
					t.Fatalf("trimmed to %d, %s has read up to %d", start, behind, end/4)
				}
				commit(t, b, behind, topic.Name, 1, end)
				if room := trim(t, b); room[Chats] <= 0 {
					t.Errorf("no room after everything was read: %v", room)
				}
			})
		}
	}
}

// No producer that writes beyond the log's cap stops chats: events of chats have room again
// once Parley's groups have read theirs. The producers write events of each topic of chats,
// dead letters, search events, and their dead letters; no group of Parley reads the last two.
func TestNoProducerStopsChats(t *testing.T) {
	for i, topic := range Topics() {
		t.Run(topic.Name, func(t *testing.T) {
			if i > 0 { // no goroutines but those of the first topic meet in the others
				racetest.SkipSerial(t)
			}
			b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), MaxBytes: 2 << 20})
			fillLog(t, b, MessagesPersisted, 0, 200_000)
			fillLog(t, b, topic.Name, 0, 3_000_000)
			readAll(t, b)
			age(t, b)
			room := trim(t, b)
			if room[Chats] <= 0 || room[topic.Kind] <= 0 {
				t.Fatalf("no room is left: %v", room)
			}
			if start, end := bounds(b, topic.Name, 0); start == 0 || start >= end {
				t.Errorf("%s begins at %d of %d", topic.Name, start, end)
			}
			if n := b.Bytes(); n > 2<<20 {
				t.Errorf("%d bytes are left of a cap of 2 MiB", n)
			}
			if start, _ := bounds(b, MessagesPersisted, 0); topic.Kind != Chats && start != 0 {
				t.Errorf("events of chats were trimmed to %d", start)
			}
		})
	}
}

// Search events, and dead letters of both sorts, have shares of their own: 4, 2 and 1 of 16.
// They take nothing from events of chats, whose readers are behind here.
func TestSharesOfTheLog(t *testing.T) {
	for topic, share := range map[string]int64{"search_click_v1": 1 << 20, DeadLetters: 512 << 10,
		"search_click_v1.dlq": 256 << 10} {
		t.Run(topic, func(t *testing.T) {
			kind := Topics()[slices.IndexFunc(Topics(), func(t Topic) bool { return t.Name == topic })].Kind
			b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), MaxBytes: 4 << 20})
			fillLog(t, b, topic, 0, 1_500_000)
			fillLog(t, b, ChatsCreated, 3, 2_000_000)
			age(t, b)
			if room := trim(t, b); room[Chats] < 300_000 || room[kind] <= 0 {
				t.Errorf("room is left: %v", room)
			}
			if n := bytesOf(t, b, kind); n > share || n < share*6/10 {
				t.Errorf("%d bytes are left of a share of %d", n, share)
			}
			if start, _ := bounds(b, ChatsCreated, 3); start != 0 {
				t.Errorf("events were trimmed to %d", start)
			}
		})
	}
}

// A reader that is connected can have a search event before it is trimmed: it stays for a
// minute. Until then search events have no room, and chats have theirs.
func TestYoungSearchEventsStay(t *testing.T) {
	b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), MaxBytes: 2 << 20})
	fillLog(t, b, "search_dwell_v1", 2, 3_000_000)
	if room := trim(t, b); room[Searches] > 0 || room[Chats] < 1<<20 {
		t.Errorf("room is left: %v", room)
	}
	if start, _ := bounds(b, "search_dwell_v1", 2); start != 0 {
		t.Errorf("young events were trimmed to %d", start)
	}
	age(t, b)
	if room := trim(t, b); room[Searches] <= 0 {
		t.Errorf("no room is left a minute later: %v", room)
	}
}

// What search events have left in a topic that the setting no longer names counts as search
// events, and can be trimmed, although nothing is recorded of it.
func TestTrimOfFormerTopics(t *testing.T) {
	dir := t.TempDir()
	former := Topics()[4]
	former.Name, former.Partitions = "clicks.eu", 1
	b := openBrokerWith(t, BrokerConfig{Dir: dir, MaxBytes: 2 << 20, Topics: append(Topics(), former)})
	fillLog(t, b, former.Name, 0, 3_000_000)
	b.Close()
	b = openBrokerWith(t, BrokerConfig{Dir: dir, MaxBytes: 2 << 20})
	age(t, b)
	if room := trim(t, b); room[Searches] <= 0 || room[Chats] <= 0 {
		t.Errorf("room is left: %v", room)
	}
	if start, end := bounds(b, former.Name, 0); start == 0 || start >= end {
		t.Errorf("the former topic begins at %d of %d", start, end)
	}
}

// A former topic that the broker has lost with its list of topics is not trimmed, and keeps
// nothing else from being trimmed.
func TestTrimWithFilesOfAnUnknownTopic(t *testing.T) {
	dir := t.TempDir()
	former := Topics()[4]
	former.Name, former.Partitions = "clicks.eu", 1
	b := openBrokerWith(t, BrokerConfig{Dir: dir, MaxBytes: 2 << 20, Topics: append(Topics(), former)})
	fillLog(t, b, former.Name, 0, 3_000_000)
	b.Close()
	if err := os.Remove(filepath.Join(dir, "topics.json")); err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	b = openBrokerWith(t, BrokerConfig{Dir: dir, MaxBytes: 2 << 20, Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	if !strings.Contains(lines.String(), "a topic that is not in use") || !strings.Contains(lines.String(), "clicks.eu") {
		t.Error(lines.String())
	}
	fillLog(t, b, "search_click_v1", 0, 1_000_000)
	age(t, b)
	if room := trim(t, b); room[Searches] <= 0 || room[Chats] <= 0 {
		t.Errorf("room is left: %v", room)
	}
	if start, _ := bounds(b, "search_click_v1", 0); start == 0 {
		t.Error("the topic in use was not trimmed")
	}
	list, err := logdir.Segments(dir)
	first := func(s logdir.Segment) bool { return s.Topic == former.Name && s.Base == 0 }
	if err != nil || !slices.ContainsFunc(list, first) {
		t.Error("the records of the former topic are gone")
	}
}

// What cannot be removed is counted as still there, and everything else is trimmed.
func TestTrimAfterErrors(t *testing.T) {
	var fails error
	b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), MaxBytes: 2 << 20,
		Keep: func(context.Context, Marks) error { return fails }})
	fillLog(t, b, DeadLetters, 2, 1_000_000)
	fails = errors.New("the store is away")
	room, err := b.Trim()
	if !errors.Is(err, fails) || room[Letters] > -700_000 || room[Chats] < 800_000 || room[Chats] > 1_200_000 {
		t.Errorf("without a note of the trim: room %v, %v", room, err)
	}
	fails = nil

	unreadable := filepath.Join(b.cfg.Dir, "partitions", "clicks.eu-0") // a file where a directory should be
	if err := os.WriteFile(unreadable, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if room, err = b.Trim(); err == nil || len(room) != 4 || room[Letters] <= 0 {
		t.Errorf("with a directory that cannot be read: room %v, %v", room, err)
	}
	if start, _ := bounds(b, DeadLetters, 2); start == 0 {
		t.Error("nothing was trimmed")
	}

	// The broker refuses offsets beyond the ends of the partitions but one.
	_, end := bounds(b, DeadLetters, 2)
	first := map[Partition]logdir.Segment{{Topic: DeadLetters, ID: 2}: {Base: end}}
	for id := range int32(16) {
		first[Partition{Topic: ChatsCreated, ID: id}] = logdir.Segment{Base: 7}
	}
	if err := b.cut(nil, first); err == nil || len(first) != 16 {
		t.Errorf("%d partitions are left to trim, %v", len(first), err)
	}
	if start, _ := bounds(b, DeadLetters, 2); start != end {
		t.Errorf("begins at %d of %d after others failed", start, end)
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
	readAll(t, b)
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
