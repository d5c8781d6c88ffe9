package table

import "github.com/parley-chat/parley/server/store"

// DirectIndex finds the one direct chat of two people. Table direct_chat_index,
// key pair_key.
type DirectIndex struct {
	ChatID    string
	CreatedAt int64 // unix ms
}

// DirectIndexKey is the key of a pair, in either order (L-009).
func DirectIndexKey(a, b string) store.Key {
	if b < a {
		a, b = b, a
	}
	return store.Key{Table: store.DirectChatIndex, PK: a + "#" + b}
}

// Item returns the row as an item.
func (d DirectIndex) Item() store.Item {
	var a attrs
	a.str("chat_id", d.ChatID)
	a.int("created_at", d.CreatedAt)
	return a.item()
}

// DirectIndexFrom reads the row of a pair.
func DirectIndexFrom(it store.Item) DirectIndex {
	return DirectIndex{ChatID: str(it, "chat_id"), CreatedAt: num(it, "created_at")}
}

// Pending lists the members of a new group that are not members yet. Table
// pending_members, key chat_id.
type Pending struct {
	ChatID    string
	Members   []string
	CreatedBy string
	CreatedAt int64 // unix ms
}

// AttrMembers is the attribute that plans compare a pending row by.
const AttrMembers = "members"

// PendingKey is the key of a chat's pending members.
func PendingKey(chatID string) store.Key { return store.Key{Table: store.PendingMembers, PK: chatID} }

// Item returns the row as an item.
func (p Pending) Item() store.Item {
	var a attrs
	a.list(AttrMembers, p.Members)
	a.str("created_by", p.CreatedBy)
	a.int("created_at", p.CreatedAt)
	return a.item()
}

// PendingFrom reads the row of a chat.
func PendingFrom(chatID string, it store.Item) Pending {
	return Pending{
		ChatID:    chatID,
		Members:   it.Get(AttrMembers).Strings(),
		CreatedBy: str(it, "created_by"),
		CreatedAt: num(it, "created_at"),
	}
}

// User is a person. Table users, key user_id.
type User struct {
	UserID    string
	CreatedAt int64 // unix ms
}

// UserKey is the key of a user.
func UserKey(userID string) store.Key { return store.Key{Table: store.Users, PK: userID} }

// Item returns the row as an item.
func (u User) Item() store.Item {
	var a attrs
	a.int("created_at", u.CreatedAt)
	return a.item()
}

// ClockKey is the key of the last stamp that a process took, in table meta.
func ClockKey() store.Key { return store.Key{Table: store.Meta, PK: "clock"} }

// AttrStamp holds that stamp, in unix ms.
const AttrStamp = "stamp"
