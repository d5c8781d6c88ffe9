package table

import "github.com/parley-chat/parley/server/store"

// Membership is one member of a chat. Table chat_memberships, key chat_id and
// user_id.
type Membership struct {
	ChatID         string
	UserID         string
	Role           Role
	JoinedAt       int64 // unix ms
	JoinedSequence int64 // sequence of the chat when the user joined
	JoinedVersion  int64 // version of the change that made the user a member
	Version        int64 // of the chat in which this membership last changed
}

// AttrRole is the attribute that plans test a member's rights by.
const AttrRole = "role"

// MembershipKey is the key of a membership.
func MembershipKey(chatID, userID string) store.Key {
	return store.Key{Table: store.ChatMemberships, PK: chatID, SK: userID}
}

// Item returns the row as an item.
func (m Membership) Item() store.Item {
	a := make(attrs, 0, 5)
	a.int("joined_at", m.JoinedAt)
	a.int("joined_sequence", m.JoinedSequence)
	a.int("joined_version", m.JoinedVersion)
	a.str(AttrRole, string(m.Role))
	a.int(AttrVersion, m.Version)
	return a.item()
}

// MembershipFrom reads the row of a member.
func MembershipFrom(chatID, userID string, it store.Item) Membership {
	return Membership{
		ChatID:         chatID,
		UserID:         userID,
		Role:           Role(str(it, AttrRole)),
		JoinedAt:       num(it, "joined_at"),
		JoinedSequence: num(it, "joined_sequence"),
		JoinedVersion:  num(it, "joined_version"),
		Version:        num(it, AttrVersion),
	}
}
