package view_test

import (
	"context"
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/store/table"
)

type syncs = func(context.Context, string, *deliveryv1.SyncRequest) (*deliveryv1.SyncResponse, error)

func (w *world) syncWith(sync syncs, token string) *deliveryv1.SyncResponse {
	w.Helper()
	res, err := sync(w.ctx, "bob", &deliveryv1.SyncRequest{Token: token})
	w.must(err)
	return res
}

// A clock is an hour ahead for two minutes: a token of that time hides nothing that is
// stamped when the clock is right again, not even when the token's time has come.
func TestTokenOfAWrongClock(t *testing.T) {
	for name, with := range map[string]func(w *world) (reader, late syncs){
		"one process":   func(w *world) (syncs, syncs) { return w.reader.Sync, w.reader.Sync },
		"two processes": func(w *world) (syncs, syncs) { return w.reader.Sync, w.newReader(generation, 'k').Sync },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			reader, late := with(w)
			before := w.clock()
			id, other := w.group(table.All, "ann", "bob"), w.group(table.All, "ann", "bob")
			first := w.syncWith(reader, "")

			w.advance(time.Hour)
			w.send(other, "ann", "ahead")
			wrong := w.syncWith(reader, first.GetToken())
			w.advance(before.Add(2 * time.Minute).Sub(w.clock()))

			w.advance(8 * time.Minute)
			w.send(id, "ann", "lost?")
			w.advance(time.Hour)
			got := w.syncWith(late, wrong.GetToken())
			equal(t, "full", got.GetFull(), true)
			equal(t, "chats", len(got.GetChats()), 2)

			// What was read since hides nothing either, and is not full again.
			w.advance(time.Hour)
			w.send(id, "ann", "more")
			next := w.syncWith(late, got.GetToken())
			equal(t, "full again", next.GetFull(), false)
			equal(t, "changed", chatIDs(next.GetChats()), []string{id})
		})
	}
}

// While the wrong time lies ahead, tokens of the right clock are not full: a clock that
// was a year ahead for a moment does not make all reads full for a year.
func TestTokensAfterAWrongClock(t *testing.T) {
	w := newWorld(t)
	id := w.group(table.All, "ann", "bob")
	old := w.syncWith(w.reader.Sync, "")
	w.advance(time.Hour)
	start := w.clock()
	w.advance(365 * 24 * time.Hour)
	w.send(id, "ann", "in a year")
	w.advance(start.Sub(w.clock()))
	w.send(id, "ann", "now")
	w.advance(time.Hour)

	got := w.syncWith(w.reader.Sync, old.GetToken())
	equal(t, "from before the jump", got.GetFull(), false)
	equal(t, "changed", chatIDs(got.GetChats()), []string{id})
	w.advance(time.Hour)
	got = w.syncWith(w.reader.Sync, got.GetToken())
	equal(t, "from after it", got.GetFull(), false)
	equal(t, "changed", len(got.GetChats()), 0)
}

// Tokens of releases that did not count setbacks go on, and know of none.
func TestUncountedTokens(t *testing.T) {
	const token = "AQVnZW5fQQAAAZypQ6pwANgdGz69rZXu2-Y7JjsZ8g" // of 12:00
	w := newWorld(t)
	id := w.group(table.All, "ann", "bob")
	w.advance(time.Hour)
	got, err := w.reader.Token(w.ctx, "bob", token)
	w.must(err)
	equal(t, "time", got.At.UTC(), time.Date(2026, 3, 1, 11, 58, 30, 0, time.UTC))
	equal(t, "full", got.Full, false)

	w.send(id, "ann", "at one")
	w.advance(-time.Hour)
	w.send(id, "ann", "at twelve")
	w.advance(time.Hour + time.Minute)
	got, err = w.reader.Token(w.ctx, "bob", token)
	w.must(err)
	equal(t, "full after a setback", got.Full, true)
}
