package delivery_test

import (
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store/table"
)

// profiles are the versions of a user's profile that a device was notified of.
func (d *device) profiles(user string) (versions []int64) {
	d.take()
	for _, f := range d.frames {
		if p := f.GetProfileChanged(); p.GetUserId() == user {
			versions = append(versions, p.GetVersion())
		}
	}
	return versions
}

// A newer profile is announced to the person's own streams and to those of people who share a
// chat, once each, whatever the number of chats; to nobody else, and without a read.
func TestProfileChanged(t *testing.T) {
	w := newFixture(t, nil)
	first := w.group(table.All, "alice", "bob")
	second := w.group(table.All, "bob", "alice", "carol")
	w.change(chat.OpRemove, chat.MemberChange{Caller: "bob", ChatID: second, UserID: "carol"})
	own, shares, alone := w.open("alice", ""), w.open("bob", ""), w.open("carol", "")
	late := w.register("bob", "") // has not read anything yet
	w.performWork()
	w.hub.ProfileChanged("alice", 7, []string{first, second, "chat_unknown"})
	for name, c := range map[string]struct {
		d    *device
		want int
	}{"own": {own, 1}, "who shares two chats": {shares, 1}, "who was removed": {alone, 0}} {
		if got := c.d.profiles("alice"); len(got) != c.want || c.want == 1 && got[0] != 7 {
			t.Errorf("%s was notified of %v", name, got)
		}
	}
	if got := late.profiles("alice"); len(got) > 0 { // it asks for profiles after its hello
		t.Errorf("a stream without chats was notified of %v", got)
	}
	w.hub.Close(shares.s)
	w.hub.ProfileChanged("alice", 8, []string{first})
	if got := own.profiles("alice"); len(got) != 2 || got[1] != 8 {
		t.Errorf("notified of %v", got)
	}
	if got := shares.profiles("alice"); len(got) != 1 {
		t.Errorf("a stream that was closed was notified of %v", got)
	}
}
