package chat_test

import (
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
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

// A release that does not count own messages raises read positions beside this one. Then messages of others are never
// taken for own ones, and the next mark counts again.
func TestOwnMessagesBesideAnEarlierRelease(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob")
		id := w.group(s, "ann", "bob")
		for _, by := range []string{"ann", "bob", "bob", "bob"} {
			w.send(s, id, by, "x")
		}
		earlier := store.Write{Op: store.OpUpdate, Name: "mark", Key: table.UserChatKey("bob", id), Cond: store.Exists(),
			Update: store.Update{Set: []store.Attr{{Name: table.AttrReadSequence, Value: store.Int(4)}},
				Add: []store.Increment{{Name: table.AttrRevision, N: 1}}}}
		if err := st.Transact(w.ctx, store.Plan{Writes: []store.Write{earlier}}); err != nil {
			t.Fatal(err)
		}
		for _, by := range []string{"ann", "ann", "ann", "bob", "bob", "ann"} { // 5 to 10
			w.send(s, id, by, "x")
		}
		row := w.userChat("bob", id)
		if row.Unread(10) < 4 || row.Unread(10) > 5 {
			t.Errorf("%d unread of 4: %+v", row.Unread(10), row)
		}
		if _, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: id, Sequence: 6}); err != nil {
			t.Fatal(err)
		}
		if row = w.userChat("bob", id); row.Unread(10) != 2 {
			t.Errorf("%d unread of 2 after a mark: %+v", row.Unread(10), row)
		}
	})
}

// The repetition of a stored send with a seen sequence returns the stored message, also after its sender was removed.
func TestSeenAndRepeated(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob")
		id := w.group(s, "ann", "bob")
		send := chat.Send{Caller: "bob", ChatID: id, ClientMessageID: "x1", Content: "x", SeenSequence: 1}
		first, err := s.Send(w.ctx, send)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Change(w.ctx, chat.OpRemove, chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob"}); err != nil {
			t.Fatal(err)
		}
		if again, err := s.Send(w.ctx, send); err != nil || again.MessageID != first.MessageID {
			t.Errorf("%+v, %v", again, err)
		}
	})
}
