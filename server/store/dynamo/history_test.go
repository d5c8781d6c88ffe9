package dynamo_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// unmarkAtEnd removes the marks of tables that other tests use again.
func unmarkAtEnd(t *testing.T, s *dynamo.Store) {
	t.Helper()
	t.Cleanup(func() { testkit.Must(t, s.Unmark(context.Background())) })
}

// marked is a store with a number of heartbeats.
func marked(t *testing.T, heartbeats int) (*dynamo.Store, dynamo.Line) {
	t.Helper()
	s := dynamotest.Fresh(t)
	unmarkAtEnd(t, s)
	line := s.Opened()
	for range heartbeats {
		line = testkit.Value(s.RecordHeartbeat(t.Context(), line))(t)
	}
	return s, line
}

func again(t *testing.T, s *dynamo.Store) (*dynamo.Store, error) {
	t.Helper()
	other, err := dynamo.Open(t.Context(), dynamo.Options{Prefix: s.Options().Prefix, Wire: s.Options().Wire})
	if err == nil {
		t.Cleanup(func() { testkit.Must(t, other.Close()) })
	}
	return other, err
}

// One of several processes that have read the same line records a heartbeat. No scan shows the marks.
func TestHeartbeatOfTables(t *testing.T) {
	s, line := marked(t, 2)
	other := testkit.Value(again(t, s))(t)
	if got := other.Opened(); got.Heartbeats != 2 || got.Generation != line.Generation {
		t.Fatalf("opened at %+v", got)
	}
	next := testkit.Value(other.RecordHeartbeat(t.Context(), other.Opened()))(t)
	var lost *store.ConditionError
	if _, err := s.RecordHeartbeat(t.Context(), line); !errors.As(err, &lost) {
		t.Errorf("the heartbeat of a process that was late: %v", err)
	}
	if now := testkit.Value(s.Line(t.Context(), store.Strong))(t); now.Heartbeats != 3 || next.Heartbeats != 3 {
		t.Errorf("%+v", now)
	}
	k := row("a")
	testkit.Must(t, s.Transact(t.Context(), store.Plan{Writes: []store.Write{putOf("a", 1)}}))
	for _, d := range store.Tables() {
		if d.Name == store.Meta {
			continue
		}
		for _, limit := range []int{0, 1} {
			var keys []store.Key
			for r, err := range store.ScanAll(t.Context(), s, store.Scan{Table: d.Name, Segments: 1, Limit: limit}) {
				testkit.Must(t, err)
				keys = append(keys, r.Key)
			}
			if want := d.Name == k.Table; (len(keys) == 1 && keys[0] == k) != want || len(keys) > 1 {
				t.Errorf("a scan of %s shows %q", d.Name, keys)
			}
		}
	}
}

// Tables of different moments are not opened, and a running process notices them with its next heartbeat.
// Those of one copy may differ by one heartbeat: a copy is made of each table by itself.
func TestMixedTables(t *testing.T) {
	put := func(heartbeats int64) func(store.Key) store.Write {
		return func(k store.Key) store.Write {
			return store.Write{Op: store.OpPut, Key: k, Item: store.NewItem(
				store.Attr{Name: "beat", Value: store.Int(heartbeats)},
				store.Attr{Name: "at", Value: store.Int(time.Now().Add(time.Duration(heartbeats-9) * time.Minute).UnixMilli())})}
		}
	}
	remove := func(k store.Key) store.Write { return store.Write{Op: store.OpDelete, Key: k} }
	for name, tt := range map[string]struct {
		key  store.Key
		do   func(store.Key) store.Write
		says string // "": they are of one moment
	}{
		"one is older":      {dynamo.MarkKey(store.Events), put(5), "events is 4m0s older than "},
		"one is newer":      {dynamo.MarkKey(store.Sessions), put(12), "sessions is 3m0s newer than "},
		"one was emptied":   {dynamo.MarkKey(store.Users), remove, "users was emptied"},
		"meta was emptied":  {dynamo.GenerationKey, remove, "users is in use, and "},
		"one is just older": {dynamo.MarkKey(store.Events), put(8), ""},
		"one is just newer": {dynamo.MarkKey(store.Events), put(10), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, line := marked(t, 9)
			testkit.Must(t, s.Transact(t.Context(), store.Plan{Writes: []store.Write{tt.do(tt.key)}}))
			_, opened := again(t, s)
			_, began := s.Begin(t.Context(), "g2", 0)
			for what, err := range map[string]error{"opened": opened, "a line begun": began} {
				if (tt.says != "") != errors.Is(err, dynamo.ErrMixed) ||
					err != nil && (!strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n")) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if tt.key == dynamo.GenerationKey || tt.says == "" {
				return
			}
			if _, err := s.RecordHeartbeat(t.Context(), line); !errors.Is(err, dynamo.ErrMixed) {
				t.Errorf("a heartbeat: %v", err)
			}
		})
	}
}

// A table that a release has added has no mark until the next heartbeat, and a store of a release without
// heartbeats is opened.
func TestTableOfALaterRelease(t *testing.T) {
	s, _ := marked(t, 1)
	it := testkit.Value(s.Get(t.Context(), dynamo.GenerationKey, store.Strong))(t)
	before := slices.DeleteFunc(it.Get("marked").Strings(),
		func(name string) bool { return name == string(store.Services) })
	testkit.Must(t, s.Transact(t.Context(), store.Plan{Writes: []store.Write{
		{Op: store.OpUpdate, Key: dynamo.GenerationKey, Update: store.Update{
			Set: []store.Attr{{Name: "marked", Value: store.List(before)}}}},
		{Op: store.OpDelete, Key: dynamo.MarkKey(store.Services)},
	}}))
	line := testkit.Value(s.Line(t.Context(), store.Strong))(t)
	testkit.Value(again(t, s))(t)
	testkit.Value(s.RecordHeartbeat(t.Context(), line))(t)
	it = testkit.Value(s.Get(t.Context(), dynamo.MarkKey(store.Services), store.Strong))(t)
	testkit.Equal(t, "heartbeats of the mark", it.Get("beat").Int64(), 2)
}

// A line that begins is further than the tables and than what was seen, and ends the heartbeats of the
// one before.
func TestBegin(t *testing.T) {
	s, line := marked(t, 3)
	began := testkit.Value(s.Begin(t.Context(), "g2", 50))(t)
	if began.Generation != "g2" || began.Heartbeats != 51 {
		t.Errorf("%+v after %+v", began, line)
	}
	if opened := testkit.Value(again(t, s))(t).Opened(); opened.Generation != began.Generation || opened.Heartbeats != 51 {
		t.Errorf("opened at %+v", opened)
	}
	var lost *store.ConditionError
	line.Heartbeats = 51 // the marks are those of the other line
	if _, err := s.RecordHeartbeat(t.Context(), line); !errors.As(err, &lost) && !errors.Is(err, store.ErrConflict) {
		t.Errorf("a heartbeat of the line before: %v", err)
	}
	line.Heartbeats = 3
	if _, err := s.RecordHeartbeat(t.Context(), line); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a heartbeat of a process that stood still: %v", err)
	}
	if next := testkit.Value(s.Begin(t.Context(), "g3", 0))(t); next.Generation != "g3" || next.Heartbeats != 52 {
		t.Errorf("repeated: %+v", next)
	}
}
