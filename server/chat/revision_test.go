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

// A revision stands for one state: what is reported under it is what the row held then,
// also where another change came between the read of the row and its write.
func TestARevisionIsOneState(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		reported := map[int64]table.UserChat{}
		receipts := func(c *chat.Config) {
			c.Receipt = func(row table.UserChat, _ table.Head) {
				if old, ok := reported[row.Revision]; ok && old != row {
					t.Errorf("revision %d is %+v and %+v", row.Revision, old, row)
				}
				reported[row.Revision] = row
			}
		}
		b := &between{Store: st}
		s, other := w.service("p", b, receipts), w.service("q", st, receipts)
		w.users(other, "ann", "bob")
		id := w.group(other, "ann", "bob")
		w.send(other, id, "ann", "1")
		w.send(other, id, "ann", "2")
		first := w.userChat("bob", id).Revision
		set := func(by *chat.Service, o chat.MemberSettings) {
			o.Caller, o.ChatID, o.Procedure = "bob", id, "own"
			if _, err := by.SetMemberSettings(w.ctx, o); err != nil {
				t.Fatal(err)
			}
		}
		until, yes := int64(table.Forever), true
		b.next = func() { set(other, chat.MemberSettings{MutedUntil: &until}) }
		out, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: id, Sequence: 1})
		row := out.Row
		// An engine whose answer was lost may have made a change once more: a revision is
		// never used again, but may be left out.
		if err != nil || row.MutedUntil != until || row.ReadSequence != 1 || row.Revision < first+2 ||
			row != w.userChat("bob", id) {
			t.Errorf("%+v, %v", row, err)
		}
		b.next = func() { w.send(other, id, "bob", "3") }
		set(s, chat.MemberSettings{Archived: &yes})
		if row = w.userChat("bob", id); row.ReadSequence != 1 || row.OwnCount != 1 || row.OwnLast != 3 || !row.Archived ||
			row.Revision < first+4 ||
			reported[row.Revision] != row {
			t.Errorf("%+v, reported %+v", row, reported[row.Revision])
		}
		// What is delivered is no change of the state.
		if err := s.Delivered(w.ctx, "bob", id, 3); err != nil || w.userChat("bob", id).Revision != row.Revision {
			t.Error(w.userChat("bob", id), err)
		}
	})
}
