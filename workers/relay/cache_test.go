package relay

import (
	"fmt"
	"testing"

	"github.com/parley-chat/parley/server/store"
)

// A relay that publishes the events of more than 65,536 chats forgets the position of some of
// them. It keeps most, each with its own version, and publishes the next events of all chats in
// order, whether it has their position or reads it.
func TestPositionsOfMoreChatsThanTheCacheHolds(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	var ids []string
	for range 20 {
		ids = append(ids, r.group())
	}
	r.rest(re)
	row := store.Key{Table: store.Outbox, PK: "0", SK: "published"}
	for i := range int64(70_000) {
		re.recordPublished(plan{key: row, chatID: fmt.Sprint("chat ", i), last: i})
		if n := len(re.lastPublished); n > 65_536 || i >= 65_535 && n < 61_000 {
			t.Fatalf("%d positions after %d chats, want 61,000 to 65,536", n, i+1)
		}
		if re.lastPublished[fmt.Sprint("chat ", i)] != i {
			t.Fatalf("the position of chat %d is %d", i, re.lastPublished[fmt.Sprint("chat ", i)])
		}
	}
	for id, last := range re.lastPublished {
		var i int64
		if _, err := fmt.Sscanf(id, "chat %d", &i); err == nil && last != i {
			t.Fatalf("the position of %s is %d", id, last)
		}
	}
	for range 3 {
		for _, id := range ids {
			r.send(id)
		}
		r.rest(re)
	}
	r.check(true)
}
