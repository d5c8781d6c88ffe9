package table

import "github.com/parley-chat/parley/server/store"

// User is a person. Table users, key user_id.
type User struct {
	UserID    string
	CreatedAt int64 // unix ms
	Status    Status
}

// UserKey is the key of a user.
func UserKey(userID string) store.Key { return store.Key{Table: store.Users, PK: userID} }

// Item returns the row as an item.
func (u User) Item() store.Item {
	a := make(attrs, 0, 2)
	a.int("created_at", u.CreatedAt)
	a.optStr(AttrStatus, string(u.Status))
	return a.item()
}

// UserFrom reads the row of a user.
func UserFrom(userID string, it store.Item) User {
	return User{UserID: userID, CreatedAt: num(it, "created_at"), Status: Status(str(it, AttrStatus))}
}
