package table

import (
	"time"

	"github.com/parley-chat/parley/server/store"
)

// LeftRetention is how long the row of a chat that was left is kept.
const LeftRetention = 90 * 24 * time.Hour

// UserChat is what a chat holds for one user alone, and the index of the user's
// chats. Table delivery_state, key user_id and chat_id.
type UserChat struct {
	UserID            string
	ChatID            string
	History           History // copy of the chat's, which never changes
	JoinedSequence    int64   // sequence of the chat when the user joined
	JoinedVersion     int64   // version of the change that made the user a member
	ReadSequence      int64
	DeliveredSequence int64
	MutedUntil        int64 // unix ms; 0 if not muted
	Archived          bool
	LeftVersion       int64 // version of the change that ended the membership; 0 for a member
	ChangedAt         int64 // unix ms; of everything but DeliveredSequence
	ExpiresAt         int64 // unix s; 0 for a member
}

// Attributes of a user's row that plans test or change.
const (
	AttrReadSequence      = "read_sequence"
	AttrDeliveredSequence = "delivered_sequence"
	AttrLeftVersion       = "left_version"
	AttrChangedAt         = "changed_at"
	AttrMutedUntil        = "muted_until"
	AttrArchived          = "archived"
)

// Forever is the end of a mute without one, in unix ms: the last second of the
// year 9999, which every format of time can write.
const Forever = 253402300799000

// UserChatKey is the key of a user's row of a chat.
func UserChatKey(userID, chatID string) store.Key {
	return store.Key{Table: store.DeliveryState, PK: userID, SK: chatID}
}

// Item returns the row as an item.
func (u UserChat) Item() store.Item {
	a := make(attrs, 0, 10)
	a.optBool(AttrArchived, u.Archived)
	a.int(AttrChangedAt, u.ChangedAt)
	a.int(AttrDeliveredSequence, u.DeliveredSequence)
	a.optInt(store.ExpiresAtField, u.ExpiresAt)
	a.str("history", string(u.History))
	a.int("joined_sequence", u.JoinedSequence)
	a.int("joined_version", u.JoinedVersion)
	a.optInt(AttrLeftVersion, u.LeftVersion)
	a.optInt(AttrMutedUntil, u.MutedUntil)
	a.int(AttrReadSequence, u.ReadSequence)
	return a.item()
}

// UserChatFrom reads the row of a user.
func UserChatFrom(userID, chatID string, it store.Item) UserChat {
	return UserChat{
		UserID:            userID,
		ChatID:            chatID,
		History:           History(str(it, "history")),
		JoinedSequence:    num(it, "joined_sequence"),
		JoinedVersion:     num(it, "joined_version"),
		ReadSequence:      num(it, AttrReadSequence),
		DeliveredSequence: num(it, AttrDeliveredSequence),
		MutedUntil:        num(it, AttrMutedUntil),
		Archived:          it.Get(AttrArchived).True(),
		LeftVersion:       num(it, AttrLeftVersion),
		ChangedAt:         num(it, AttrChangedAt),
		ExpiresAt:         num(it, store.ExpiresAtField),
	}
}

// Left reports whether the user is no longer a member.
func (u UserChat) Left() bool { return u.LeftVersion != 0 }

// Floor is the first version of the chat that the user may see.
func (u UserChat) Floor() int64 {
	if u.History == SinceJoined {
		return u.JoinedVersion
	}
	return 0
}

// FirstSequence is the sequence of the first message that the user may see.
func (u UserChat) FirstSequence() int64 {
	if u.History == SinceJoined {
		return u.JoinedSequence + 1
	}
	return 1
}

// Visible reports whether the user may see a change of the chat: what was
// committed before joining is hidden in a SINCE_JOINED chat, and what was
// committed after leaving everywhere. sequence is that of the message the change
// is about, 0 for none.
func (u UserChat) Visible(version, sequence int64) bool {
	if u.Left() && version > u.LeftVersion {
		return false
	}
	return version >= u.Floor() && (sequence == 0 || sequence >= u.FirstSequence())
}

// IsMember is the condition on a user's row that makes the user a member.
func IsMember() store.Condition { return isMember }

var isMember = store.Exists().Without(AttrLeftVersion)
