package chat_test

import (
	"context"
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// between is a store in which something happens right before the next plan.
type between struct {
	store.Store
	next func()
}

func (b *between) Transact(ctx context.Context, p store.Plan) error {
	if f := b.next; f != nil {
		b.next = nil
		f()
	}
	return b.Store.Transact(ctx, p)
}

// A revision stands for one state: what is told under it is what the row held then,
// also where another change came between the read of the row and its write.
func TestARevisionIsOneState(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newWorld(t, st)
		told := map[int64]table.UserChat{}
		receipts := func(c *chat.Config) {
			c.Receipt = func(row table.UserChat, _ table.Head) {
				if old, ok := told[row.Revision]; ok && old != row {
					t.Errorf("revision %d is %+v and %+v", row.Revision, old, row)
				}
				told[row.Revision] = row
			}
		}
		b := &between{Store: st}
		s, other := w.service("p", b, receipts), w.service("q", st, receipts)
		w.users(other, "ann", "bob")
		id := w.group(other, "ann", "bob")
		w.send(other, id, "ann", "1")
		w.send(other, id, "ann", "2")
		first := w.userChat("bob", id).Revision
		set := func(by *chat.Service, o chat.Own) {
			o.Caller, o.ChatID, o.Procedure = "bob", id, "own"
			if _, err := by.SetOwn(w.ctx, o); err != nil {
				t.Fatal(err)
			}
		}
		until, yes := int64(table.Forever), true
		b.next = func() { set(other, chat.Own{MutedUntil: &until}) }
		row, _, err := s.MarkRead(w.ctx, "bob", id, 1)
		// An engine whose answer was lost may have made a change once more: a revision is
		// never used again, but may be left out.
		if err != nil || row.MutedUntil != until || row.ReadSequence != 1 || row.Revision < first+2 || row != w.userChat("bob", id) {
			t.Errorf("%+v, %v", row, err)
		}
		b.next = func() { w.send(other, id, "bob", "3") }
		set(s, chat.Own{Archived: &yes})
		if row = w.userChat("bob", id); row.ReadSequence != 3 || !row.Archived || row.Revision < first+4 || told[row.Revision] != row {
			t.Errorf("%+v, told %+v", row, told[row.Revision])
		}
		// What is delivered is no change of the state.
		if err := s.Delivered(w.ctx, "bob", id, 3); err != nil || w.userChat("bob", id).Revision != row.Revision {
			t.Error(w.userChat("bob", id), err)
		}
	})
}
