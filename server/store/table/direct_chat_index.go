package table

import "github.com/parley-chat/parley/server/store"

// DirectIndex finds the one direct chat of two people. Table direct_chat_index,
// key pair_key.
type DirectIndex struct {
	ChatID    string
	CreatedAt int64 // unix ms
}

// DirectIndexKey is the key of a pair. It does not depend on the order of the two, so that
// both sides find the same chat.
func DirectIndexKey(a, b string) store.Key {
	if b < a {
		a, b = b, a
	}
	return store.Key{Table: store.DirectChatIndex, PK: a + "#" + b}
}

// Item returns the row as an item.
func (d DirectIndex) Item() store.Item {
	a := make(attrs, 0, 2)
	a.str("chat_id", d.ChatID)
	a.int("created_at", d.CreatedAt)
	return a.item()
}

// DirectIndexFrom reads the row of a pair.
func DirectIndexFrom(it store.Item) DirectIndex {
	return DirectIndex{ChatID: str(it, "chat_id"), CreatedAt: num(it, "created_at")}
}
