package delivery_test

import (
	"fmt"
	"testing"

	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store/table"
)

// A hub that has verified the memberships of more than 65,536 chats without subscriptions forgets
// some of them and keeps most. A forgotten one costs a read, after which it is verified again.
func TestMoreVerifiedChatsThanTheHubHolds(t *testing.T) {
	w := newFixture(t, nil)
	d := w.open("alice", "")
	var groups []string
	for range 100 {
		groups = append(groups, w.group(table.All, "bob", "carol"))
	}
	w.performWork()
	verified := func(chat string, version int64) bool {
		return w.hub.Applied(delivery.Delivery{Generation: "g1", ChatID: chat, MembershipVersion: version})
	}
	for _, id := range groups {
		if !verified(id, 1) {
			t.Fatalf("%s is not verified", id)
		}
	}
	const chats = 70_000
	for i := range int64(chats) {
		w.hub.SetVerified(fmt.Sprint("chat ", i), i+1)
	}
	kept := 0
	for i := range int64(chats) {
		if verified(fmt.Sprint("chat ", i), i+2) {
			t.Fatalf("chat %d is verified at a version that it does not have", i)
		}
		if verified(fmt.Sprint("chat ", i), i+1) {
			kept++
		}
	}
	if kept < 61_000-len(groups) || kept > 65_536 {
		t.Errorf("%d chats are verified, want 61,000 to 65,536", kept)
	}
	for _, id := range groups {
		w.send("bob", id, "hello")
	}
	w.performWork()
	for _, id := range groups {
		if !verified(id, 1) {
			t.Errorf("%s is not verified after another message", id)
		}
	}
	d.take()
	for _, id := range groups {
		if texts := d.texts[id]; len(texts) > 0 {
			t.Errorf("a stream of no member has %v", texts)
		}
	}
}
