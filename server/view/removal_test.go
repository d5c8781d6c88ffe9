package view_test

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/table"
)

// A user is removed between two reads of an answer, before each of them in turn,
// and then a secret is sent. Nothing committed after the removal is in any
// answer: no text, and no version beyond the removal's.
func TestNothingAfterTheOwnRemoval(t *testing.T) {
	for _, history := range []table.History{table.All, table.SinceJoined} {
		for name, op := range operations {
			t.Run(fmt.Sprintf("%s/%s", name, history), func(t *testing.T) {
				for at, done := 0, false; !done; at++ {
					w := newFixture(t)
					id := w.group(history, "ann", "bob", "cid")
					w.send(id, "ann", "one")
					w.send(id, "ann", "two")
					var removal int64
					w.store.before = func(read int) {
						if read == at {
							w.store.before = nil
							w.remove(id, "ann", "bob")
							removal = w.headOf(id).Version
							w.send(id, "ann", "secret")
							w.add(id, "ann", "dan")
						}
					}
					w.store.reads = 0
					res, err := op(w, "bob", id)
					done = removal == 0 // fewer reads than that
					if errors.Is(err, chat.ErrNotAMember) {
						continue
					}
					w.must(err)
					out := text(res)
					if strings.Contains(out, "secret") || strings.Contains(out, "dan") {
						t.Fatalf("removed before read %d: %s", at, out)
					}
					for _, m := range regexp.MustCompile(`"version": *"(\d+)"`).FindAllStringSubmatch(out, -1) {
						if v, _ := strconv.ParseInt(m[1], 10, 64); removal != 0 && v > removal {
							t.Fatalf("removed before read %d at version %d: %s", at, removal, out)
						}
					}
				}
			})
		}
	}
}

// headOf reads a head without being watched.
func (w *fixture) headOf(chatID string) table.Head {
	w.Helper()
	it, err := w.store.Store.Get(w.ctx, table.HeadKey(chatID), true)
	w.must(err)
	return table.HeadFrom(chatID, it)
}

// A removed user who comes back in between sees what a member who joins then may
// see, and nothing from the time between.
func TestBackBetweenTwoReads(t *testing.T) {
	for name, op := range operations {
		t.Run(name, func(t *testing.T) {
			for at, done := 0, false; !done; at++ {
				w := newFixture(t)
				id := w.group(table.SinceJoined, "ann", "bob", "cid")
				w.send(id, "ann", "one")
				w.send(id, "ann", "two")
				done = true
				w.store.before = func(read int) {
					if read == at {
						w.store.before, done = nil, false
						w.remove(id, "ann", "bob")
						w.send(id, "ann", "secret")
						w.add(id, "ann", "bob")
					}
				}
				w.store.reads = 0
				res, err := op(w, "bob", id)
				if errors.Is(err, chat.ErrNotAMember) {
					continue
				}
				w.must(err)
				if out := text(res); strings.Contains(out, "secret") ||
					(!done && (strings.Contains(out, "one") || (at > 0 && strings.Contains(out, `"changes"`)))) {
					t.Fatalf("before read %d: %s", at, out)
				}
			}
		})
	}
}

// SINCE_JOINED: no message at or before joined_sequence and no change
// before the joining in any answer.
func TestSinceJoined(t *testing.T) {
	w := newFixture(t)
	id := w.group(table.SinceJoined, "ann", "cid")
	for i := range 5 {
		w.send(id, "ann", fmt.Sprintf("old %d", i))
	}
	w.add(id, "ann", "bob")
	for name, op := range operations {
		res, err := op(w, "bob", id)
		w.must(err)
		if out := text(res); strings.Contains(out, "old") {
			t.Fatalf("%s: %s", name, out)
		}
	}
	c := w.changes("bob", id, 0, 0)
	testkit.Equal(t, "changes", len(c.GetChanges()), 1)
	testkit.Equal(t, "joined", c.GetChanges()[0].GetMembershipChange().GetUserId(), "bob")
	testkit.Equal(t, "version", c.GetVersion(), c.GetHead().GetVersion())

	w.send(id, "ann", "new 1")
	w.send(id, "ann", "new 2")
	for name, op := range operations {
		res, err := op(w, "bob", id)
		w.must(err)
		if out := text(res); strings.Contains(out, "old") || (name != "members" && !strings.Contains(out, "new")) {
			t.Fatalf("%s: %s", name, out)
		}
	}
	for _, u := range []string{"ann", "cid"} { // were there before
		res, err := operations["newest messages"](w, u, id)
		w.must(err)
		testkit.Equal(t, "messages of "+u, strings.Count(text(res), "old"), 5)
	}
	// From the beginning in pages, a client does not get stuck in what is hidden.
	for name, size := range map[string]int32{"one": 1, "many": 50} {
		testkit.Equal(t, name, texts(w.messages("bob", listAfter(id, 0, size)).GetMessages())[0], "new 1")
	}
}
