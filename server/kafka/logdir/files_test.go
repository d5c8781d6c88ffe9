package logdir_test

import (
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/kafka/logdir/oldbroker"
)

// A log that was trimmed begins where the broker's notes of an orderly stop say, unless a repair makes the files
// again: the notes are of others then. A broker shows the same start.
func TestStart(t *testing.T) {
	dir, marks := filled(t, 4, 100)
	b := testkit.Value(oldbroker.Open(config(dir, marks)))(t)
	testkit.Must(t, b.Cluster.DeleteRecords(part.Topic, part.ID, 5))
	b.Close()
	files := filepath.Join(dir, "partitions", "chats.created-3")
	index := testkit.Value(os.ReadFile(filepath.Join(files, "0.idx")))(t)
	snapshot := testkit.Value(os.ReadFile(filepath.Join(files, "snapshot.json")))(t)
	flipped := slices.Clone(index)
	last := flipped[len(flipped)-15:]
	last[14] ^= 1
	last[1] = byte(crc32.Checksum(last[2:], crc32.MakeTable(crc32.Castagnoli)))
	unsure := slices.Clone(index)
	unsure[3] ^= 1
	for name, c := range map[string]struct {
		file    string
		content []byte
		start   int64
	}{
		"as it was":                {"0.idx", index, 5},
		"index without an entry":   {"0.idx", index[:len(index)-15], 0},
		"another index":            {"0.idx", flipped, 0},
		"a wrong sum in the index": {"0.idx", unsure, 0},
		"notes of other files":     {"snapshot.json", []byte(strings.ReplaceAll(string(snapshot), "12", "11")), 0},
		"torn notes":               {"snapshot.json", snapshot[:len(snapshot)/2], 0},
	} {
		t.Run(name, func(t *testing.T) {
			to := copied(t, dir)
			path := filepath.Join(to, "partitions", "chats.created-3", c.file)
			testkit.Must(t, os.WriteFile(path, c.content, 0o600))
			report := check(t, to, marks)
			start, end := report.Bounds(part)
			if _, whole := report.Segments(part); start != c.start || end != 12 || whole != (c.start > 0) {
				t.Errorf("offsets %d to %d, whole: %v", start, end, whole)
			}
			info := opened(t, to, marks).Cluster.PartitionInfo(part.Topic, part.ID)
			testkit.Equal(t, "start that a broker shows", info.LogStartOffset, c.start)
		})
	}
}

// A list that is missing or damaged is named, and so is one without a topic that has files.
func TestLists(t *testing.T) {
	dir, marks := filled(t, 1, 100)
	for says, change := range map[string]func(dir string) error{
		"meta.json is missing": func(dir string) error { return os.Remove(filepath.Join(dir, "meta.json")) },
		"topics.json cannot be read": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "topics.json"), []byte("{"), 0o600)
		},
		"topics.json has no topic " + part.Topic: func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "topics.json"), []byte(`{"topics":[]}`), 0o600)
		},
	} {
		to := copied(t, dir)
		testkit.Must(t, change(to))
		if notes := check(t, to, marks).Notes; !slices.Contains(notes, says) {
			t.Errorf("%q, expected %s", notes, says)
		}
		testkit.Must(t, oldbroker.Repair(config(to, marks)))
		if notes := check(t, to, marks).Notes; len(notes) > 0 {
			t.Errorf("%s: %q after the repair", says, notes)
		}
	}
}

// An offset that was deleted does not come back, though its commit is still in the file.
func TestDeletedOffset(t *testing.T) {
	dir, marks := withGroups(t)
	b := opened(t, dir, marks)
	c := testkit.Value(b.Client())(t)
	defer c.Close()
	var set kadm.TopicsSet
	set.Add(part.Topic, part.ID)
	testkit.Must(t, testkit.Value(kadm.NewClient(c).DeleteOffsets(t.Context(), "third", set))(t).Error())
	left := read(check(t, copied(t, dir), marks))
	if _, ok := left["third"]; ok || len(left) != len(groups)-1 {
		t.Error(left)
	}
}

// The size of a log is that of its segments and indexes.
func TestSizes(t *testing.T) {
	dir, _ := filled(t, 20, 4_000)
	want, files := int64(0), 0
	for _, suffix := range []string{"*.dat", "*.idx"} {
		for _, path := range testkit.Value(filepath.Glob(filepath.Join(dir, "partitions", "chats.created-3", suffix)))(t) {
			want += testkit.Value(os.Stat(path))(t).Size()
			files++
		}
	}
	if files < 4 {
		t.Fatalf("%d files", files)
	}
	testkit.Equal(t, "bytes", testkit.Value(logdir.Sizes(dir))(t)[part], want)
	testkit.Equal(t, "partitions of no log", len(testkit.Value(logdir.Sizes(t.TempDir()))(t)), 0)
}
