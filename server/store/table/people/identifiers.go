package people

import "github.com/parley-chat/parley/server/store"

// Identifier says whose an e-mail address or phone number is. Table identifiers, key its
// normal form with its kind, and "#".
type Identifier struct {
	UserID string
	At     int64 // when it was proven last, unix ms
}

// AttrUser is the attribute with a user's id, of identifiers and handles.
const AttrUser = "user"

// userPartition is the prefix of the partition with a user's identifiers.
const userPartition = "user:"

// IdentifierKey is the key of an identifier in normal form, such as "email:ann@example.com".
func IdentifierKey(value string) store.Key {
	return store.Key{Table: store.Identifiers, PK: value, SK: "#"}
}

// Item returns the row as an item.
func (i Identifier) Item() store.Item {
	return item(attr("at", store.Int(i.At)), attr(AttrUser, store.String(i.UserID)))
}

// IdentifierFrom reads the row of an identifier.
func IdentifierFrom(it store.Item) Identifier {
	return Identifier{UserID: str(it, AttrUser), At: num(it, "at")}
}

// UserIdentifiers is the partition with a user's identifiers: one row for each, and one with
// their number, whose sort key is "#".
func UserIdentifiers(user string) string { return userPartition + user }

// UserIdentifierKey is the key of an identifier among those of its user.
func UserIdentifierKey(user, value string) store.Key {
	return store.Key{Table: store.Identifiers, PK: UserIdentifiers(user), SK: value}
}

// IdentifierCountKey is the key of the row that has the number of a user's identifiers.
func IdentifierCountKey(user string) store.Key {
	return store.Key{Table: store.Identifiers, PK: UserIdentifiers(user), SK: "#"}
}

// AttrCount is the attribute with that number.
const AttrCount = "count"

// UserIdentifierItem is the row of an identifier among those of its user.
func UserIdentifierItem(at int64) store.Item { return item(attr("at", store.Int(at))) }
