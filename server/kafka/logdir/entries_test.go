package logdir_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/testkit"
)

// groups are consumer groups of other programs, in the order in which they commit.
var groups = []string{"first", "second", "third", "fourth", "fifth"}

// committed opens a log and returns what the groups have committed, 0 for nothing.
func committed(t *testing.T, dir string, marks kafka.Marks) map[string]int64 {
	t.Helper()
	b := testkit.Value(kafka.OpenBroker(kafka.BrokerConfig{Dir: dir, Listen: "127.0.0.1:0", MaxBytes: 1 << 20,
		Known: marks}))(t)
	defer b.Close()
	c := testkit.Value(kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.DisableClientMetrics(),
		kgo.MaxVersions(kversion.V3_0_0())))(t)
	defer c.Close()
	found := map[string]int64{}
	for _, g := range groups {
		req := kmsg.NewPtrOffsetFetchRequest()
		group := kmsg.NewOffsetFetchRequestGroup()
		group.Group = g
		req.Group, req.Groups = g, append(req.Groups, group)
		res := testkit.Value(req.RequestWith(t.Context(), c))(t)
		for _, rg := range res.Groups {
			for _, topic := range rg.Topics {
				for _, p := range topic.Partitions {
					found[g] += p.Offset
				}
			}
		}
	}
	return found
}

// withGroups makes a log in which each group has committed its number, as a process leaves it that is
// killed: each commit is a record of its own.
func withGroups(t *testing.T) (dir string, marks kafka.Marks) {
	t.Helper()
	dir, marks = filled(t, 4, 100)
	b := testkit.Value(kafka.OpenBroker(kafka.BrokerConfig{Dir: dir, Listen: "127.0.0.1:0", MaxBytes: 1 << 20,
		Known: marks}))(t)
	defer b.Close()
	c := testkit.Value(kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.DisableClientMetrics(),
		kgo.MaxVersions(kversion.V3_0_0())))(t)
	defer c.Close()
	for i, g := range groups {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Group, req.Generation = g, -1
		topic, p := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset = part.ID, int64(i+1)
		topic.Topic, topic.Partitions = part.Topic, append(topic.Partitions, p)
		req.Topics = append(req.Topics, topic)
		res := testkit.Value(req.RequestWith(t.Context(), c))(t)
		if code := res.Topics[0].Partitions[0].ErrorCode; code != 0 {
			t.Fatal(code)
		}
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
// lost bytes are lost: for a broker that opens the log, or in the file that Repair writes.
func checkGroups(
	t *testing.T, name, dir string, marks kafka.Marks, opened bool, b []byte, all map[string]int64, lost []byte,
	says string,
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
	if !opened { // then the file says enough
		testkit.Must(t, report.Repair())
		left := testkit.Value(os.ReadFile(path))(t)
		if want := strings.Replace(string(whole), string(lost), "", 1); string(left) != want {
			t.Errorf("%s: %d bytes are left, expected %d", name, len(left), len(want))
		}
		testkit.Must(t, os.WriteFile(path, whole, 0o600))
		return
	}
	found := committed(t, to, marks)
	for g, offset := range all {
		want := offset
		if strings.Contains(string(lost), `"g":"`+g+`"`) {
			want = 0
			if named := report.Unreadable[0].Groups; name != "removed" && strings.HasPrefix(name, "checksum") &&
				!slices.Contains(named, fmt.Sprintf("%q", g)) {
				t.Errorf("%s: %v are named, not %s", name, named, g)
			}
		}
		if found[g] != want && !(want == 0 && found[g] == offset) { // a lost record need not be the commit
			t.Errorf("%s: %s has committed %d, expected %d", name, g, found[g], want)
		}
	}
	if list := check(t, to, marks).Unreadable; len(list) > 0 {
		t.Errorf("%s: a second check finds %v", name, list)
	}
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
	testkit.Must(t, report.Repair())
	if left := testkit.Value(os.ReadFile(path))(t); len(left) != len(b)-records(b)[1] {
		t.Errorf("%d of %d bytes are left", len(left), len(b))
	}
	if list := check(t, filepath.Join(t.TempDir(), "new"), nil).Unreadable; len(list) > 0 {
		t.Error(list)
	}
}

// Other users cannot read what the broker writes, also after it has replaced its lists.
func TestFilesArePrivate(t *testing.T) {
	dir, marks := filled(t, 2, 100)
	private := func(when string) {
		t.Helper()
		testkit.Must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s: %s is %v", when, path, info.Mode())
			}
			return err
		}))
	}
	private("after the end")
	b := testkit.Value(kafka.OpenBroker(kafka.BrokerConfig{Dir: dir, Listen: "127.0.0.1:0", Known: marks}))(t)
	defer b.Close()
	testkit.Must(t, b.Flush(t.Context()))
	private("at the start")
	list := kafka.Topics()[0]
	list.Name = "another"
	testkit.Must(t, b.Add(t.Context(), list)) // topics.json is written again
	testkit.Must(t, b.Flush(t.Context()))
	private("after a topic was added")
}
