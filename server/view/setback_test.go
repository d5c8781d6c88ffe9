package view_test

import (
	"context"
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat/timestamp"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

type syncs = func(context.Context, string, *deliveryv1.SyncRequest) (*deliveryv1.SyncResponse, error)

func (w *fixture) syncWith(sync syncs, token string) *deliveryv1.SyncResponse {
	w.Helper()
	res, err := sync(w.ctx, "bob", &deliveryv1.SyncRequest{Token: token})
	w.must(err)
	return res
}

// A clock is an hour ahead for two minutes: a token of that time hides nothing that is
// stamped when the clock is right again, not even when the token's time has come.
func TestTokenOfAWrongClock(t *testing.T) {
	for name, with := range map[string]func(w *fixture) (reader, late syncs){
		"one process":   func(w *fixture) (syncs, syncs) { return w.reader.Sync, w.reader.Sync },
		"two processes": func(w *fixture) (syncs, syncs) { return w.reader.Sync, w.newReader(generation, 'k').Sync },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
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
			testkit.Equal(t, "full", got.GetFull(), true)
			testkit.Equal(t, "chats", len(got.GetOverviews()), 2)

			// What was read since hides nothing either, and is not full again.
			w.advance(time.Hour)
			w.send(id, "ann", "more")
			next := w.syncWith(late, got.GetToken())
			testkit.Equal(t, "full again", next.GetFull(), false)
			testkit.Equal(t, "changed", chatIDs(next.GetOverviews()), []string{id})
		})
	}
}

// The same if nothing but reads ran while the clock was ahead: no stamp shows it later.
func TestReadsOfAWrongClock(t *testing.T) {
	for name, with := range map[string]func(w *fixture) (reader, late syncs){
		"one process":        func(w *fixture) (syncs, syncs) { return w.reader.Sync, w.reader.Sync },
		"another one's read": func(w *fixture) (syncs, syncs) { return w.newReader(generation, 'k').Sync, w.reader.Sync },
		"three processes": func(w *fixture) (syncs, syncs) {
			return w.newReader(generation, 'k').Sync, w.newReader(generation, 'k').Sync
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			reader, late := with(w)
			before := w.clock()
			id, other := w.group(table.All, "ann", "bob"), w.group(table.All, "ann", "bob")
			first := w.syncWith(reader, "")

			w.advance(time.Hour)
			wrong := w.syncWith(reader, first.GetToken())
			w.advance(before.Add(2 * time.Minute).Sub(w.clock()))

			w.advance(8 * time.Minute)
			w.send(id, "ann", "lost?")
			w.advance(time.Hour)
			got := w.syncWith(late, wrong.GetToken())
			testkit.Equal(t, "full", got.GetFull(), true)
			testkit.Equal(t, "chats", len(got.GetOverviews()), 2)

			w.advance(time.Hour)
			w.send(other, "ann", "more")
			next := w.syncWith(late, got.GetToken())
			testkit.Equal(t, "full again", next.GetFull(), false)
			testkit.Equal(t, "changed", chatIDs(next.GetOverviews()), []string{other})
		})
	}
}

// In one process, not even a change right after the correction is hidden, and nothing
// else runs until the token's time has come: neither a wide jump, which counts as a
// setback, nor a narrow one, which stamps do not follow, hides it.
func TestReadJustBeforeTheCorrection(t *testing.T) {
	for name, jump := range map[string]time.Duration{"wide": time.Hour, "narrow": 4 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			id := w.group(table.All, "ann", "bob")
			w.send(id, "ann", "first")
			w.advance(jump)
			wrong := w.syncWith(w.reader.Sync, "")
			w.advance(4*time.Second - jump)
			w.send(id, "ann", "lost?")
			w.advance(jump + 5*time.Minute)
			got := w.syncWith(w.reader.Sync, wrong.GetToken())
			testkit.Equal(t, "changed", chatIDs(got.GetOverviews()), []string{id})
		})
	}
}

// A restart right after the correction changes nothing: the store knows of the read.
func TestReadBeforeARestart(t *testing.T) {
	w := newFixture(t)
	w.group(table.All, "ann", "bob")
	w.advance(4 * time.Minute)
	w.syncWith(w.reader.Sync, "")
	w.advance(10*time.Second - 4*time.Minute)
	again := timestamp.New(w.store.Store, w.clock)
	w.must(again.Load(w.ctx))
	if at := again.Next(0); at < w.clock().Add(3*time.Minute).UnixMilli() {
		t.Errorf("the next process stamps %d", at)
	}
}

// A store that takes no writes: reads continue, with times that the store knows of.
func TestReadsWithoutWrites(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob")
	w.send(id, "ann", "first")
	sent := w.clock()
	cfg := w.config(generation, 'k')
	cfg.Store = readOnly{w.store}
	reader := view.New(cfg)
	w.advance(time.Hour)
	got := w.syncWith(reader.Sync, "")
	token, err := reader.Token(w.ctx, "bob", got.GetToken())
	w.must(err)
	testkit.Equal(t, "full", token.Full, false)
	testkit.Equal(t, "time", token.At.UTC(), sent.Add(-90*time.Second))
}

type readOnly struct{ store.Store }

func (readOnly) Transact(context.Context, store.Plan) error { return store.ErrUnavailable }

// The pages of one list that was begun while the clock was ahead, and ended long after:
// nothing that changed in between is lost, neither in its pages nor with its token.
func TestPagesAcrossASetback(t *testing.T) {
	for name, write := range map[string]bool{"only reads": false, "a command": true} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			before := w.clock()
			ids := make([]string, 3)
			for i := range ids {
				ids[i] = w.group(table.All, "ann", "bob")
				w.advance(time.Second)
			}
			seen := map[string]int64{}
			page := func(token, pageToken string) *deliveryv1.SyncResponse {
				res, err := w.reader.Sync(w.ctx, "bob", &deliveryv1.SyncRequest{Token: token, PageToken: pageToken, PageSize: 1})
				w.must(err)
				for _, c := range res.GetOverviews() {
					seen[c.GetChat().GetChatId()] = c.GetHead().GetSequence()
				}
				return res
			}
			w.advance(time.Hour)
			if write {
				w.send(ids[2], "ann", "ahead")
			}
			res := page("", "")
			w.advance(before.Add(2 * time.Minute).Sub(w.clock()))
			w.advance(8 * time.Minute)
			w.send(ids[0], "ann", "lost?")
			w.advance(time.Hour)
			for res.GetNextPageToken() != "" {
				res = page("", res.GetNextPageToken())
			}
			testkit.Equal(t, "chats", len(seen), 3)
			w.advance(time.Hour)
			token := res.GetToken()
			for res = page(token, ""); res.GetNextPageToken() != ""; {
				res = page(token, res.GetNextPageToken())
			}
			testkit.Equal(t, "message", seen[ids[0]], 1)
		})
	}
}

// While the wrong time lies ahead, tokens of the right clock are not full: a clock that
// was a year ahead for a moment does not make all reads full for a year.
func TestTokensAfterAWrongClock(t *testing.T) {
	w := newFixture(t)
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
	testkit.Equal(t, "from before the jump", got.GetFull(), false)
	testkit.Equal(t, "changed", chatIDs(got.GetOverviews()), []string{id})
	w.advance(time.Hour)
	got = w.syncWith(w.reader.Sync, got.GetToken())
	testkit.Equal(t, "from after it", got.GetFull(), false)
	testkit.Equal(t, "changed", len(got.GetOverviews()), 0)
}

// Tokens of releases that did not count setbacks remain valid, and know of none.
func TestUncountedTokens(t *testing.T) {
	const token = "AQVnZW5fQQAAAZypQ6pwANgdGz69rZXu2-Y7JjsZ8g" // of 12:00
	w := newFixture(t)
	id := w.group(table.All, "ann", "bob")
	w.advance(time.Hour)
	got, err := w.reader.Token(w.ctx, "bob", token)
	w.must(err)
	testkit.Equal(t, "time", got.At.UTC(), time.Date(2026, 3, 1, 11, 58, 30, 0, time.UTC))
	testkit.Equal(t, "full", got.Full, false)

	w.send(id, "ann", "at one")
	w.advance(-time.Hour)
	w.send(id, "ann", "at twelve")
	w.advance(time.Hour + time.Minute)
	got, err = w.reader.Token(w.ctx, "bob", token)
	w.must(err)
	testkit.Equal(t, "full after a setback", got.Full, true)
}
