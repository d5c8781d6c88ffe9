package delivery_test

import (
	"fmt"
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store/table"
)

// largeGroup makes a group of n members, alice among them, and a device of each.
func (w *fixture) largeGroup(n int) (chatID string, devices []*device) {
	w.t.Helper()
	members := []string{"alice"}
	for i := 1; i < n; i++ {
		members = append(members, fmt.Sprintf("member%04d", i))
		w.must(w.chats.EnsureUser(w.ctx, members[i]))
	}
	chatID = w.group(table.SinceJoined, members...)
	for _, u := range members {
		devices = append(devices, w.open(u, "", known(chatID, 0)))
	}
	w.performWork()
	return chatID, devices
}

// A group of 1,000 has the same rules as one of two: every device sees every message once
// and in order, those who leave and who come in between what is theirs.
func TestThousandMembers(t *testing.T) {
	w := newFixture(t, nil)
	id, devices := w.largeGroup(1000)
	for i := range 5 {
		w.send("alice", id, fmt.Sprint("text ", i))
	}
	w.change(chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "member0500"})
	w.change(chat.OpLeave, chat.MemberChange{Caller: "member0501", ChatID: id})
	w.send("member0999", id, "two fewer")
	devices = append(devices, w.open("bob", ""))
	w.change(chat.OpAdd, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob", Role: table.Member})
	w.send("alice", id, "bob is here")
	w.performWork()
	gone := 0
	for _, d := range devices {
		d.take()
		if d.user() == "member0500" || d.user() == "member0501" {
			if gone++; !d.left[id] || len(d.texts[id]) != 5 {
				t.Errorf("%s: left %t with %d texts, want true with 5", d.user(), d.left[id], len(d.texts[id]))
			}
			continue
		}
		d.agrees(id)
		want := 7
		if d.user() == "bob" {
			want = 1
		}
		if n := len(d.texts[id]); n != want {
			t.Errorf("%s shows %d texts, want %d", d.user(), n, want)
		}
	}
	if gone != 2 || len(devices) != 1001 {
		t.Errorf("%d of %d devices saw their departure, want 2 of 1001", gone, len(devices))
	}
}

// BenchmarkMembers sends into a group of n with a stream of each member; ns/delivery must
// not grow with n.
func BenchmarkMembers(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newFixture(b, nil)
			id, devices := w.largeGroup(n)
			b.ReportAllocs()
			for b.Loop() {
				w.send("alice", id, "hello, everybody")
				for _, d := range devices {
					first, frames, _ := d.s.Take(16)
					if len(frames) != 1 {
						b.Fatalf("%d frames, want 1", len(frames))
					}
					w.must(d.s.Ack(first))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/delivery")
		})
	}
}
