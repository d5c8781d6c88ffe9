package table

import "github.com/parley-chat/parley/server/store"

// User is a person. Table users, key user_id.
type User struct {
	UserID    string
	CreatedAt int64 // unix ms
	Status    Status
	// Chats is the number of chats that the user is a member of. Rows of releases
	// that did not count have none: Counted is false, and so it is where there is no
	// row.
	Chats   int64
	Counted bool
}

// AttrChats is the attribute that plans count a user's chats in.
const AttrChats = "chats"

// UserKey is the key of a user.
func UserKey(userID string) store.Key { return store.Key{Table: store.Users, PK: userID} }

// Item returns the row as an item.
func (u User) Item() store.Item {
	a := make(attrs, 0, 3)
	if u.Counted {
		a.int(AttrChats, u.Chats)
	}
	a.int("created_at", u.CreatedAt)
	a.optStr(AttrStatus, string(u.Status))
	return a.item()
}

// UserFrom reads the row of a user.
func UserFrom(userID string, it store.Item) User {
	chats := it.Get(AttrChats)
	return User{
		UserID: userID, CreatedAt: num(it, "created_at"), Status: Status(str(it, AttrStatus)),
		Chats: chats.Int64(), Counted: chats.Kind() == store.KindInt,
	}
}
