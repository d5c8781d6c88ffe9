package upgrade_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/eventlog/upgrade"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/group"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// released is what the broker of the last release showed of the directory in testdata, by Kafka's
// protocol: see the file README there.
type released struct {
	content
	Offsets []committed
}

type committed struct {
	Group, Topic string
	Partition    int32
	Offset       int64
	Epoch        int32
	Metadata     string
}

// unpack unpacks the directory, and reads what the broker showed of it.
func unpack(t *testing.T) (dir string, want released) {
	t.Helper()
	dir = t.TempDir()
	b := testkit.Value(os.ReadFile(filepath.Join("testdata", "old.tar.gz")))(t)
	for pack := tar.NewReader(testkit.Value(gzip.NewReader(bytes.NewReader(b)))(t)); ; {
		h, err := pack.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Must(t, err)
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testkit.Must(t, os.WriteFile(path, testkit.Value(io.ReadAll(pack))(t), 0o600))
	}
	b = testkit.Value(os.ReadFile(filepath.Join("testdata", "old.json.gz")))(t)
	zip := testkit.Value(gzip.NewReader(bytes.NewReader(b)))(t)
	testkit.Must(t, json.NewDecoder(zip).Decode(&want))
	return dir, want
}

type topicsOf struct{ *opened }

func (x topicsOf) ByName(name string) (group.Topic, bool) {
	return group.Topic{Name: name, Partitions: 1024}, true
}
func (x topicsOf) ByID([16]byte) (group.Topic, bool) { return group.Topic{}, false }

// A directory of the last release has the same records at the same offsets afterwards, and the same
// committed offsets.
func TestLastRelease(t *testing.T) {
	dir, want := unpack(t)
	groups := &rows{}
	log := filepath.Join(dir, "log")
	before := sums(t, log)
	x := open(t, openStore(t, dir), log, groups)
	var done, total int64
	x.cfg.Progress = func(d, of int64) {
		if d < done || d > of || of == 0 {
			t.Errorf("progress goes from %d to %d of %d", done, d, of)
		}
		done, total = d, of
	}
	report := testkit.Value(upgrade.Run(t.Context(), x.cfg))(t)
	x.read(t).expect(t, want.content)
	if !maps.Equal(before, sums(t, log)) {
		t.Error("the old directory has changed")
	}
	if done != total {
		t.Errorf("progress ends with %d of %d", done, total)
	}
	if n := int64(len(before)); report.References < 150 || report.Copies < 90 || !report.Moved || report.Groups != 4 ||
		report.Offsets != len(want.Offsets) || report.Damaged+report.Unreadable+report.Restored != 0 || n == 0 {
		t.Errorf("report: %+v", report)
	}
	x.expectOffsets(t, groups, want.Offsets)
	if seen := x.inspect(t); seen.Events != report.References+report.Copies {
		t.Errorf("the store has %+v", seen)
	}
	// The next start leaves the directory alone.
	testkit.Equal(t, "done", testkit.Value(upgrade.Done(t.Context(), x.store))(t), true)
	testkit.Must(t, os.RemoveAll(log))
	if again := testkit.Value(upgrade.Run(t.Context(), x.cfg))(t); again != (upgrade.Report{}) {
		t.Errorf("once more: %+v", again)
	}
	x.read(t).expect(t, want.content)
}

// inspect finds nothing wrong in the log in the store, and returns what it has.
func (x *opened) inspect(t *testing.T) commitlog.Inspected {
	t.Helper()
	found := func(p commitlog.Partition, where, what string) error {
		t.Errorf("%+v: %s: %s", p, where, what)
		return nil
	}
	return testkit.Value(commitlog.Inspect(t.Context(), records.Of(x.store), func() {}, found))(t)
}

// expectOffsets asks a coordinator that starts with the rows of groups.
func (x *opened) expectOffsets(t *testing.T, groups group.Store, want []committed) {
	t.Helper()
	c := testkit.Value(group.New(t.Context(), group.Config{Store: groups, Topics: topicsOf{x}}))(t)
	defer c.Close()
	for _, w := range want {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Version = 8
		req.Groups = []kmsg.OffsetFetchRequestGroup{{Group: w.Group, Topics: []kmsg.OffsetFetchRequestGroupTopic{
			{Topic: w.Topic, Partitions: []int32{w.Partition}},
		}}}
		res := testkit.Value(c.Handle(t.Context(), group.Client{Credential: "reader"}, req))(t).(*kmsg.OffsetFetchResponse)
		p := res.Groups[0].Topics[0].Partitions[0]
		metadata := ""
		if p.Metadata != nil {
			metadata = *p.Metadata
		}
		if got := (committed{w.Group, w.Topic, w.Partition, p.Offset, p.LeaderEpoch, metadata}); got != w {
			t.Errorf("committed: %+v, was %+v", got, w)
		}
	}
}
