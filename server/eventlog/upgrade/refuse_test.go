package upgrade_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/eventlog/upgrade"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
)

// lastRelease opens the directory of the last release; said is what the upgrade logs.
func lastRelease(t *testing.T) (x *opened, log string, said *bytes.Buffer) {
	t.Helper()
	dir, _ := unpack(t)
	log, said = filepath.Join(dir, "log"), &bytes.Buffer{}
	x = open(t, openStore(t, dir), log, &rows{})
	x.cfg.Logger = slog.New(slog.NewTextHandler(said, nil))
	return x, log, said
}

// untouched fails if an upgrade has written anything.
func (x *opened) untouched(t *testing.T) {
	t.Helper()
	topics := testkit.Value(x.log.EventTopics(t.Context()))(t)
	if done := testkit.Value(upgrade.Done(t.Context(), x.store))(t); done || len(topics) > 0 {
		t.Errorf("done: %v, topics: %+v", done, topics)
	}
}

// outbox are the rows of the outbox.
func outbox(t *testing.T, s *embedded.Store) map[store.Key]string {
	t.Helper()
	m := map[store.Key]string{}
	for row, err := range store.ScanAll(t.Context(), s, store.Scan{Table: store.Outbox, Segments: 1}) {
		testkit.Must(t, err)
		o := testkit.Value(table.OutboxFrom(row))(t)
		m[row.Key] = text(o)
	}
	return m
}

// Without room for all of the old files nothing is begun; with just enough it is.
func TestNoRoom(t *testing.T) {
	x, log, _ := lastRelease(t)
	room := int64(0)
	x.cfg.Room = func() int64 { return room }
	report, err := upgrade.Run(t.Context(), x.cfg)
	if !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), log) ||
		!strings.Contains(err.Error(), "free that much and start again; nothing was changed") {
		t.Errorf("without room: %v", err)
	}
	room = 2*report.Bytes + 64<<20 - 1
	if _, err := upgrade.Run(t.Context(), x.cfg); !errors.Is(err, store.ErrFull) {
		t.Errorf("with a byte too few: %v", err)
	}
	x.untouched(t)
	room++
	testkit.Value(upgrade.Run(t.Context(), x.cfg))(t)
	testkit.Equal(t, "room for 2 GB", upgrade.RoomFor(2048<<20), 2400<<20)
}

// A store that lacks the last event of a partition is behind its log. The caller decides whether that
// ends the upgrade, before anything is written.
func TestStoreBehindItsLog(t *testing.T) {
	x, _, _ := lastRelease(t)
	var last seen
	for _, p := range wanted(t).Partitions {
		if n := len(p.Records); n > 0 && p.Records[n-1].Headers != nil && p.Records[n-1].Key != nil {
			if h := p.Records[n-1].Headers[0][0]; string(*h) == "event_id" {
				last = p.Records[n-1]
			}
		}
	}
	chat := string(*last.Key)
	for version := range int64(200) {
		row := store.Write{Op: store.OpDelete, Key: table.EventKey(chat, version+1)}
		testkit.Must(t, x.store.BatchWrite(t.Context(), []store.Write{row}))
	}
	var got []upgrade.Event
	refused := errors.New("refused")
	x.cfg.Behind = func(list []upgrade.Event) error {
		got = list
		return refused
	}
	_, err := upgrade.Run(t.Context(), x.cfg)
	if !errors.Is(err, refused) || len(got) == 0 || got[0].Chat != chat || got[0].Version < 1 || got[0].Generation == "" {
		t.Errorf("%v, %+v", err, got)
	}
	x.untouched(t)
	x.cfg.Behind = func([]upgrade.Event) error { return nil }
	testkit.Value(upgrade.Run(t.Context(), x.cfg))(t)
	x.read(t).expect(t, wanted(t).content)
}

// partitionsOf are the directories of a topic's partitions that have records.
func partitionsOf(t *testing.T, log, topic string) (dirs []string) {
	t.Helper()
	for _, path := range testkit.Value(filepath.Glob(filepath.Join(log, "partitions", topic+"-*", "0.dat")))(t) {
		if info := testkit.Value(os.Stat(path))(t); info.Size() > 0 {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	return dirs
}

// What a partition has lost goes back into the outbox once, wherever the upgrade is killed.
func TestLostRecords(t *testing.T) {
	x, log, said := lastRelease(t)
	before := outbox(t, x.store)
	testkit.Must(t, os.RemoveAll(partitionsOf(t, log, "memberships.changed")[0]))
	m := &mortal{left: 1 << 30}
	x.cfg.Store = mortalStore{x.store, m}
	m.left = 2 // what is lost is recorded first, and at the end that all is done, which does not come
	if _, err := upgrade.Run(t.Context(), x.cfg); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	lost := outbox(t, x.store)
	m.left = 1 << 30
	report := testkit.Value(upgrade.Run(t.Context(), x.cfg))(t)
	after := outbox(t, x.store)
	if len(lost) <= len(before) || !maps.Equal(lost, after) || report.Damaged != 1 {
		t.Errorf("%d rows before, %d and %d after it, %+v", len(before), len(lost), len(after), report)
	}
	if !strings.Contains(said.String(), "its events are published again from the store") {
		t.Errorf("it says %s", said)
	}
	if n := strings.Count(said.String(), "events that the old log lost will be published again"); n != 2 {
		t.Errorf("%d lines about lost events: %s", n, said)
	}
}

// A batch that cannot be taken apart is lost, and the loss is recorded before the move passes it. All
// others are moved.
func TestUndecodableBatch(t *testing.T) {
	x, log, said := lastRelease(t)
	before := outbox(t, x.store)
	path := filepath.Join(partitionsOf(t, log, "memberships.changed")[0], "0.dat")
	b := testkit.Value(os.ReadFile(path))(t)
	size := 12 + binary.BigEndian.Uint32(b[8:])
	binary.BigEndian.PutUint32(b[57:], binary.BigEndian.Uint32(b[57:])+1) // the number of records
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:size], crc32.MakeTable(crc32.Castagnoli)))
	testkit.Must(t, os.WriteFile(path, b, 0o600))
	m := &mortal{left: 1} // groups come behind all records
	x.cfg.Groups = mortalGroups{x.cfg.Groups, m}
	if _, err := upgrade.Run(t.Context(), x.cfg); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	m.left = 1 << 30
	report := testkit.Value(upgrade.Run(t.Context(), x.cfg))(t)
	if after := outbox(t, x.store); len(after) != len(before)+2 || report.Restored != 2 {
		t.Errorf("%d rows, %d after it, %+v", len(before), len(after), report)
	}
	if !strings.Contains(said.String(), "cannot be decoded") {
		t.Errorf("it says %s", said)
	}
}

// Without a log and without marks a store with chats has lost all of its log; a new one has nothing to
// lose.
func TestNoLog(t *testing.T) {
	x, log, _ := lastRelease(t)
	testkit.Must(t, os.RemoveAll(log))
	testkit.Must(t, x.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpDelete, Key: table.LogKey()}}))
	report := testkit.Value(upgrade.Run(t.Context(), x.cfg))(t)
	if report.Restored < 10 || report.Moved || !testkit.Value(upgrade.Done(t.Context(), x.store))(t) {
		t.Errorf("all of the log is lost: %+v", report)
	}
	dir := t.TempDir()
	x = open(t, openStore(t, dir), filepath.Join(dir, "log"), &rows{})
	if report := testkit.Value(upgrade.Run(t.Context(), x.cfg))(t); report != (upgrade.Report{}) ||
		!testkit.Value(upgrade.Done(t.Context(), x.store))(t) {
		t.Errorf("a new directory: %+v", report)
	}
	if topics := testkit.Value(x.log.EventTopics(t.Context()))(t); len(topics) > 0 {
		t.Errorf("a new directory has %+v", topics)
	}
}

// A damaged record of groups is named; those of others are kept.
func TestDamagedGroups(t *testing.T) {
	x, log, said := lastRelease(t)
	path := filepath.Join(log, "groups.log")
	b := testkit.Value(os.ReadFile(path))(t)
	at := bytes.Index(b, []byte(`"g":"sink"`))
	b[at+3]++ // not the name
	testkit.Must(t, os.WriteFile(path, b, 0o600))
	report := testkit.Value(upgrade.Run(t.Context(), x.cfg))(t)
	if report.Unreadable != 1 || report.Groups != 4 || !strings.Contains(said.String(), "all others are kept") {
		t.Errorf("%+v: %s", report, said)
	}
}

// corruptEvents is a store that cannot read rows of events.
type corruptEvents struct{ store.Store }

func (corruptEvents) BatchGet(context.Context, []store.Key, store.Consistency) ([]store.Item, error) {
	return nil, fmt.Errorf("%w: a block", store.ErrCorrupt)
}

// Events whose rows are damaged are still in the old log, so the new one gets copies.
func TestDamagedEvents(t *testing.T) {
	x, _, said := lastRelease(t)
	x.cfg.Store = corruptEvents{x.store}
	report := testkit.Value(upgrade.Run(t.Context(), x.cfg))(t)
	if report.References != 0 || !strings.Contains(said.String(), "rows of events are damaged") {
		t.Errorf("%+v: %s", report, said)
	}
	x.read(t).expect(t, wanted(t).content)
}

// The number of partitions that a topic is declared with is that of the old log.
func TestOtherPartitions(t *testing.T) {
	x, _, _ := lastRelease(t)
	x.cfg.Topics = slices.Clone(x.cfg.Topics)
	x.cfg.Topics[0].Partitions++
	if _, err := upgrade.Run(t.Context(), x.cfg); err == nil || !strings.Contains(err.Error(), "are declared") {
		t.Error(err)
	}
	x.untouched(t)
}

func wanted(t *testing.T) released {
	t.Helper()
	_, want := unpack(t)
	return want
}
