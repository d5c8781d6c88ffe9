package chat_test

import (
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
)

// A message marks nothing as read, and is not unread for its sender, wherever a mark stands. What its sender has
// seen is marked with it if the request says so.
func TestOwnMessagesAreNotUnread(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob")
		id := w.group(s, "ann", "bob")
		for _, by := range []string{"ann", "bob", "ann", "bob", "bob", "ann", "bob", "ann"} {
			w.send(s, id, by, "x")
		}
		shown := func(what string, read, own, last, unread int64) {
			t.Helper()
			row := w.userChat("bob", id)
			count, sequence := row.OwnUnread()
			if row.ReadSequence != read || count != own || sequence != last || row.Unread(8) != unread {
				t.Errorf("%s: read %d, own %d to %d, %d unread; want %d, %d to %d, %d", what, row.ReadSequence, count, sequence,
					row.Unread(8), read, own, last, unread)
			}
		}
		shown("without a mark", 0, 4, 7, 4)
		for _, mark := range []struct{ to, own, last, unread int64 }{
			{1, 4, 7, 3}, {3, 3, 7, 2}, {4, 2, 7, 2}, {6, 1, 7, 1}, {7, 0, 0, 1}, {8, 0, 0, 0},
		} {
			if _, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: id, Sequence: mark.to}); err != nil {
				t.Fatal(err)
			}
			shown("marked", mark.to, mark.own, mark.last, mark.unread)
		}
		if _, err := s.Send(w.ctx, chat.Send{Caller: "ann", ChatID: id, Content: "y", SeenSequence: 5}); err != nil {
			t.Fatal(err)
		}
		if row := w.userChat("ann", id); row.ReadSequence != 5 || row.OwnCount != 3 || row.OwnLast != 9 {
			t.Errorf("after a message with what was seen: %+v", row)
		}
		if _, err := s.Send(w.ctx, chat.Send{Caller: "ann", ChatID: id, Content: "z", SeenSequence: 3}); err != nil {
			t.Fatal(err)
		}
		if row := w.userChat("ann", id); row.ReadSequence != 5 || row.Unread(10) != 1 {
			t.Errorf("a mark goes back: %+v", row)
		}
		if _, err := s.Send(w.ctx, chat.Send{Caller: "eve", ChatID: id, Content: "z", SeenSequence: 3}); err == nil {
			t.Error("a stranger's mark is taken")
		}
	})
}
