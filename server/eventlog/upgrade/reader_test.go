package upgrade_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/eventlog/upgrade"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/group"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// seen is a record as a reader sees it. Long values are known by their checksums.
type seen struct {
	Offset  int64        `json:"o"`
	Time    int64        `json:"t"`
	Key     *[]byte      `json:"k"`
	Value   *[]byte      `json:"v"`
	Headers [][2]*[]byte `json:"h,omitempty"`
}

func short(b []byte) *[]byte {
	if b == nil {
		return nil
	}
	if len(b) > 64 {
		sum := sha256.Sum256(b)
		b = append([]byte("sha256:"), sum[:]...)
	}
	return &b
}

func seenOf(offset int64, r *record.Record) seen {
	s := seen{Offset: offset, Time: r.Time, Key: short(r.Key), Value: short(r.Value)}
	for _, h := range r.Headers {
		s.Headers = append(s.Headers, [2]*[]byte{short([]byte(h.Key)), short(h.Value)})
	}
	return s
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// content is what readers of a log see.
type content struct {
	Topics     map[string]string    // by name: id and number of partitions
	Partitions map[string]*readPart // by topic/number
}

type readPart struct {
	Start   int64  `json:"start"`
	End     int64  `json:"end"`
	Records []seen `json:"records,omitempty"`
}

// rows keeps rows of groups in memory, durable or not, as the test says.
type rows struct {
	mu   sync.Mutex
	rows map[string][]byte
}

func (r *rows) Load(_ context.Context, each func(group.Row) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, v := range r.rows {
		if err := each(group.Row{Key: []byte(k), Value: v}); err != nil {
			return err
		}
	}
	return nil
}

func (r *rows) Write(_ context.Context, list []group.Row) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rows == nil {
		r.rows = map[string][]byte{}
	}
	for _, row := range list {
		r.rows[string(row.Key)] = row.Value
	}
	return nil
}

// opened is a data directory that is upgraded.
type opened struct {
	store *embedded.Store
	log   *commitlog.Local
	cfg   upgrade.Config
}

// open prepares the upgrade of a log with a store.
func open(t *testing.T, s *embedded.Store, dir string, groups group.Store) *opened {
	t.Helper()
	x := &opened{store: s, log: commitlog.NewLocal(records.Of(s), time.Now)}
	v := testkit.Value(versions.Load(t.Context(), s))(t)
	targets := search.DefaultTargets()
	x.cfg = upgrade.Config{Dir: dir, Store: s, Log: x.log, Topics: append(v.All(), targets.Undeclared()...), Versions: v,
		Search: targets, Groups: groups, Owner: "reader", Behind: func(list []upgrade.Event) error {
			return fmt.Errorf("the store lacks %+v", list)
		}}
	return x
}

// read reads all that the event log in the store has, as its readers will.
func (x *opened) read(t *testing.T) content {
	t.Helper()
	c := content{Topics: map[string]string{}, Partitions: map[string]*readPart{}}
	for _, topic := range testkit.Value(x.log.EventTopics(t.Context()))(t) {
		c.Topics[topic.Name] = fmt.Sprintf("%x %d", topic.ID, topic.Partitions)
		for n := range topic.Partitions {
			at := commitlog.Partition{Topic: topic.Number, Number: n}
			start, end, err := x.log.Bounds(t.Context(), at)
			testkit.Must(t, err)
			if end == 0 {
				continue
			}
			x.times(t, at, start, end)
			p := &readPart{Start: start, End: end}
			c.Partitions[fmt.Sprintf("%s/%d", topic.Name, n)] = p
			for next := start; next < end; {
				batches := testkit.Value(x.log.Read(t.Context(), at, next, 1<<20))(t)
				if len(batches) == 0 {
					break
				}
				for _, b := range batches {
					p.Records = append(p.Records, x.batch(t, b)...)
					next = b.End()
				}
			}
		}
	}
	return c
}

// times compares searches by time: what lies before the position that one finds is older.
func (x *opened) times(t *testing.T, at commitlog.Partition, start, end int64) {
	t.Helper()
	batches := testkit.Value(x.log.Read(t.Context(), at, start, 1<<20))(t)
	greatest := int64(0)
	for _, b := range batches {
		before := greatest
		for _, r := range x.batch(t, b) {
			greatest = max(greatest, r.Time)
		}
		if greatest == before {
			continue
		}
		p := testkit.Value(x.log.PositionAt(t.Context(), at, time.UnixMilli(greatest)))(t)
		if p != b.Base {
			t.Errorf("%s: the time of the batch at %d leads to %d", at, b.Base, p)
		}
		after := testkit.Value(x.log.PositionAt(t.Context(), at, time.UnixMilli(greatest+1)))(t)
		if after < b.End() && after < end {
			t.Errorf("%s: a later time than that of the batch at %d leads to %d", at, b.Base, after)
		}
	}
}

func (x *opened) batch(t *testing.T, b *commitlog.Batch) (list []seen) {
	t.Helper()
	var made []record.Record
	if b.Form == commitlog.References {
		made = testkit.Value(eventlog.Records(t.Context(), x.store, b.References()))(t)
	} else {
		for i := range b.Count() {
			made = append(made, b.Record(i))
		}
	}
	for i := range made {
		list = append(list, seenOf(b.Base+int64(i), &made[i]))
	}
	return list
}

// expect compares what readers see; ends may be further if markers are behind them.
func (c content) expect(t *testing.T, want content) {
	t.Helper()
	for name, topic := range want.Topics {
		if c.Topics[name] != topic {
			t.Errorf("topic %s is %q, was %q", name, c.Topics[name], topic)
		}
	}
	for name, p := range c.Partitions {
		// A broker would give the offsets of a partition again of which only the mark is left.
		if want.Partitions[name] == nil && p.Start < p.End {
			t.Errorf("%s is new: %s", name, text(p))
		}
	}
	for name, w := range want.Partitions {
		got := c.Partitions[name]
		if got == nil || got.Start != w.Start || got.End != w.End || len(got.Records) != len(w.Records) {
			t.Fatalf("%s: %.300s, was %.300s", name, text(got), text(w))
		}
		for i := range w.Records {
			if g, w := text(got.Records[i]), text(w.Records[i]); g != w {
				t.Fatalf("%s: record %s, was %s", name, g, w)
			}
		}
	}
}

// sums are the checksums of all files below a directory.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	testkit.Must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		m[path] = fmt.Sprintf("%x", sha256.Sum256(b))
		return err
	}))
	return m
}

// store is where the engine of a test lies.
func openStore(t *testing.T, dir string) *embedded.Store {
	t.Helper()
	s := testkit.Value(embedded.Open(embedded.Options{Dir: dir}))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

var _ store.Store = (*embedded.Store)(nil)
