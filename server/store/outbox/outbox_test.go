package outbox

import (
	"errors"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

const chat = "chat_abc123"

func row(first int64, replay bool) store.Write {
	o := table.Outbox{Shard: event.Shard(chat), AggregateID: chat, FirstVersion: first, Count: 2, CreatedAt: 1,
		Replay: replay, ReplayID: "x"}
	return store.Write{Op: store.OpPut, Key: o.Key(), Item: o.Item()}
}

func unreadable(sk string) store.Write {
	return store.Write{Op: store.OpPut,
		Key:  store.Key{Table: store.Outbox, PK: table.ShardKey(event.Shard(chat)), SK: chat + "#" + sk},
		Item: table.Outbox{Count: 1}.Item()}
}

// What waits begins with the first row that is no replay, where reading ends; a row that
// cannot be read is reported before it, and other chats' rows are not checked.
func TestUnpublished(t *testing.T) {
	other := row(1, false)
	other.Key.SK = "chat_abc124#" + table.Number(1)
	for name, tt := range map[string]struct {
		rows []store.Write
		want Waiting
	}{
		"nothing":             {nil, Waiting{}},
		"another chat's":      {[]store.Write{other}, Waiting{}},
		"rows in order":       {[]store.Write{row(9, false), row(5, false)}, Waiting{First: 5}},
		"replays":             {[]store.Write{row(3, true)}, Waiting{}},
		"a replay before":     {[]store.Write{row(3, true), row(5, false)}, Waiting{First: 5}},
		"unreadable":          {[]store.Write{unreadable("0")}, Waiting{Unreadable: true}},
		"unreadable, behind":  {[]store.Write{row(5, false), unreadable("first")}, Waiting{First: 5}},
		"unreadable, and one": {[]store.Write{unreadable("0"), row(5, false)}, Waiting{First: 5, Unreadable: true}},
	} {
		t.Run(name, func(t *testing.T) {
			st := storetest.NewMemory(time.Now)
			if len(tt.rows) > 0 {
				if err := st.BatchWrite(t.Context(), tt.rows); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := Unpublished(t.Context(), st, chat); got != tt.want || err != nil {
				t.Errorf("%+v, %v, not %+v", got, err, tt.want)
			}
		})
	}
}

// All pages are read; an error ends the rows.
func TestRows(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	const n = 500
	for v := range int64(n) {
		if err := st.BatchWrite(t.Context(), []store.Write{row(2*v+1, false)}); err != nil {
			t.Fatal(err)
		}
	}
	next := int64(1)
	for r, err := range Rows(t.Context(), st, chat) {
		o, readErr := Read(r)
		if err := errors.Join(err, readErr); err != nil || o.FirstVersion != next {
			t.Fatalf("%+v, %v, not version %d", o, err, next)
		}
		next += 2
	}
	if next != 2*n+1 {
		t.Errorf("the last rows from version %d on are missing", next)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, err := range Rows(t.Context(), st, chat) {
		if seen++; err == nil {
			t.Error("a row of a closed store")
		}
	}
	if seen != 1 {
		t.Errorf("%d rows of a closed store", seen)
	}
}
