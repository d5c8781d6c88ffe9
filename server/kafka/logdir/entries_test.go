package logdir_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/kafka/logdir/oldbroker"
)

// groups are consumer groups of other programs, in the order in which they commit.
var groups = []string{"first", "second", "third", "fourth", "fifth"}

// committed opens a log and returns what the groups have committed.
func committed(t *testing.T, dir string, marks map[kafka.Partition]logdir.Mark) map[string]int64 {
	t.Helper()
	b := testkit.Value(oldbroker.Open(config(dir, marks)))(t)
	defer b.Close()
	found := map[string]int64{}
	for _, g := range groups {
		if info := b.Cluster.GroupInfo(g); info != nil {
			if c, ok := info.Commits[part.Topic][part.ID]; ok {
				found[g] = c.Offset
			}
		}
	}
	return found
}

// read returns the same from the file.
func read(r *logdir.Report) map[string]int64 {
	found := map[string]int64{}
	for _, g := range r.Groups() {
		for _, c := range g.Commits {
			found[g.Name] = c.Offset
		}
	}
	return found
}

// withGroups makes a log in which each group has committed its number, as a process leaves it that is
// killed: each commit is a record of its own.
func withGroups(t *testing.T) (dir string, marks map[kafka.Partition]logdir.Mark) {
	t.Helper()
	dir, marks = filled(t, 4, 100)
	b := opened(t, dir, marks)
	c := testkit.Value(b.Client())(t)
	defer c.Close()
	for i, g := range groups {
		var os kadm.Offsets
		os.Add(kadm.Offset{Topic: part.Topic, Partition: part.ID, At: int64(i + 1), LeaderEpoch: -1})
		testkit.Must(t, kadm.NewClient(c).CommitAllOffsets(t.Context(), g, os))
	}
	return copied(t, dir), marks
}

// records are the positions of the records of a file, and its size at the end.
func records(b []byte) (at []int) {
	for n := 0; n < len(b); n += 8 + int(binary.LittleEndian.Uint32(b[n:])) {
		at = append(at, n)
	}
	return append(at, len(b))
}

// Whatever byte of the file of groups is changed, the group of that record alone is lost, and named;
// the others keep their offsets, those behind it too. A second check finds nothing.
func TestDamagedGroups(t *testing.T) {
	dir, marks := withGroups(t)
	whole := testkit.Value(os.ReadFile(filepath.Join(dir, "groups.log")))(t)
	at := records(whole)
	all := committed(t, copied(t, dir), marks)
	if len(all) != 5 || all["fifth"] != 5 || len(at) < 6 {
		t.Fatalf("%v in %d records", all, len(at)-1)
	}
	fields := map[string]int{"length": 0, "high byte of the length": 3, "checksum": 4, "version": 8, "object": 10}
	for n := range len(at) - 1 {
		begin, end := at[n], at[n+1]
		fields["middle"], fields["last byte"] = (end-begin)/2, end-begin-1
		for field, offset := range fields {
			name := fmt.Sprintf("%s of record %d", field, n)
			b := slices.Clone(whole)
			b[begin+offset] ^= 0x10
			checkGroups(t, name, dir, marks, n == 2, b, all, whole[begin:end],
				fmt.Sprintf("groups.log at byte %d: %d bytes", begin, end-begin))
		}
	}
	last := at[len(at)-2]
	for name, b := range map[string][]byte{
		"cut within the last record": whole[:last+20], "cut within its head": whole[:last+3],
	} {
		checkGroups(t, name, dir, marks, true, b, all, whole[last:],
			fmt.Sprintf("groups.log at byte %d: %d bytes", last, len(b)-last))
	}
	zeros := append(slices.Clone(whole), make([]byte, 500)...)
	checkGroups(t, "zeros behind", dir, marks, true, zeros, all, nil,
		fmt.Sprintf("groups.log at byte %d: 500 bytes", len(whole)))
	checkGroups(t, "all zeros", dir, marks, true, make([]byte, len(whole)), all, whole, "groups.log at byte 0")
	checkGroups(t, "removed", dir, marks, true, nil, all, whole, "groups.log is missing")
}

// checkGroups puts b in the place of the file of groups, nil for none, and checks that only the groups in the
// lost bytes are lost: in what is read of the file, and for a broker that opens the log.
func checkGroups(
	t *testing.T, name, dir string, marks map[kafka.Partition]logdir.Mark, opened bool, b []byte,
	all map[string]int64, lost []byte, says string,
) {
	t.Helper()
	to := dir
	if opened {
		to = copied(t, dir)
	}
	path := filepath.Join(to, "groups.log")
	whole := testkit.Value(os.ReadFile(path))(t)
	testkit.Must(t, os.Remove(path))
	if b != nil {
		testkit.Must(t, os.WriteFile(path, b, 0o600))
	}
	report := check(t, to, marks)
	if len(report.Unreadable) != 1 || !strings.Contains(report.Unreadable[0].String(), says) {
		t.Fatalf("%s: %v, expected %q", name, report.Unreadable, says)
	}
	found := read(report)
	for g, offset := range all {
		want := offset
		if strings.Contains(string(lost), `"type":"commit","g":"`+g+`"`) {
			want = 0
			if named := report.Unreadable[0].Groups; strings.HasPrefix(name, "checksum") &&
				!slices.Contains(named, fmt.Sprintf("%q", g)) {
				t.Errorf("%s: %v are named, not %s", name, named, g)
			}
		}
		if found[g] != want {
			t.Errorf("%s: %s has committed %d, expected %d", name, g, found[g], want)
		}
	}
	if opened {
		if shown := committed(t, to, marks); !maps.Equal(found, shown) {
			t.Errorf("%s: a broker has %v, the file %v", name, shown, found)
		}
		if list := check(t, to, marks).Unreadable; len(list) > 0 {
			t.Errorf("%s: a second check finds %v", name, list)
		}
		return
	}
	testkit.Must(t, os.WriteFile(path, whole, 0o600))
}

// A record of a producer that cannot be read takes no other with it, and a log that never had the
// files is whole.
func TestDamagedProducers(t *testing.T) {
	dir, marks := withGroups(t)
	path := filepath.Join(dir, "pids.log")
	b := testkit.Value(os.ReadFile(path))(t)
	b[12] ^= 1
	testkit.Must(t, os.WriteFile(path, b, 0o600))
	report := check(t, dir, marks)
	if len(report.Unreadable) != 1 || !strings.Contains(report.Unreadable[0].String(), "pids.log at byte 0") {
		t.Fatal(report.Unreadable)
	}
	testkit.Must(t, oldbroker.Repair(config(dir, marks)))
	if left := testkit.Value(os.ReadFile(path))(t); len(left) != len(b)-records(b)[1] {
		t.Errorf("%d of %d bytes are left", len(left), len(b))
	}
	if list := check(t, filepath.Join(t.TempDir(), "new"), nil).Unreadable; len(list) > 0 {
		t.Error(list)
	}
}
