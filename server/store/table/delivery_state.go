package table

import (
	"strings"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// LeftRetention is how long the row of a chat that was left is kept.
const LeftRetention = 90 * 24 * time.Hour

// UserChat is what a chat holds for one user alone, and the index of the user's
// chats. Table delivery_state, key user_id and chat_id.
//
// A user's partition holds the chats that the user is a member of. When one is
// left, two rows in a partition of their own take its place, for LeftRetention:
// one found by the chat's id ([LeftKey]) and one by the time ([LeftLogKey]). So a
// list of chats does not read those that were left, and a synchronisation reads
// only those that were left since. Earlier releases kept the row in its place,
// with left_version.
type UserChat struct {
	UserID            string
	ChatID            string
	Role              Role    // copy of the membership's; empty in rows of releases that did not copy it
	History           History // copy of the chat's, which never changes
	JoinedSequence    int64   // sequence of the chat when the user joined
	JoinedVersion     int64   // version of the change that made the user a member
	ReadSequence      int64
	DeliveredSequence int64
	MutedUntil        int64 // unix ms; 0 if not muted
	Archived          bool
	LeftVersion       int64 // version of the change that ended the membership; 0 for a member
	ChangedAt         int64 // unix ms; of everything but DeliveredSequence
	Revision          int64 // raised by every change of everything but DeliveredSequence; 0 in rows of releases without it
	ExpiresAt         int64 // unix s; 0 for a member
	// Peer is the other person of a direct chat, who never changes; empty in groups, and in
	// rows of releases that did not record it.
	Peer string
	// PeerReadSequence is how far Peer has read, as far as that was reported.
	PeerReadSequence int64
	// OwnCount is how many of the user's own messages came after OwnFrom, and OwnLast the sequence
	// of the last of them. A send adds to them without reading the row. A mark takes out what it
	// passes, and sets OwnFrom to ReadSequence. See OwnUnread.
	OwnCount, OwnLast, OwnFrom int64
}

// Attributes of a user's row that plans test or change.
const (
	AttrReadSequence      = "read_sequence"
	AttrDeliveredSequence = "delivered_sequence"
	AttrLeftVersion       = "left_version"
	AttrChangedAt         = "changed_at"
	AttrMutedUntil        = "muted_until"
	AttrArchived          = "archived"
	AttrPeerReadSequence  = "peer_read_sequence"
	AttrOwnCount          = "own_count"
	AttrOwnLast           = "own_last"
	AttrOwnFrom           = "own_from"
)

const attrPeer = "peer"

// revisionBits is the part of a revision that changes of the row count in.
const revisionBits = 24

// FirstRevision is the first revision of a membership that started with a version of the
// chat. It is above every revision of an earlier membership, so that revisions grow across
// memberships without a read of the former row.
func FirstRevision(joinedVersion int64) int64 { return joinedVersion << revisionBits }

// Forever is the end of a mute without one, in unix ms: the last second of the
// year 9999, which every format of time can write.
const Forever = 253402300799000

// UserChatKey is the key of a user's row of a chat.
func UserChatKey(userID, chatID string) store.Key {
	return store.Key{Table: store.DeliveryState, PK: userID, SK: chatID}
}

// Parts of the keys of chats that were left; no id contains the separator.
const (
	leftPartition = "#left"
	leftLog       = "#"
	// FirstLeft is a bound of queries, below the sort key of every [LeftKey] and
	// above that of every [LeftLogKey].
	FirstLeft = "$"
)

// LeftPartition is the partition of the chats that a user left.
func LeftPartition(userID string) string { return userID + leftPartition }

// LeftKey is the key of a user's row of a chat that was left.
func LeftKey(userID, chatID string) store.Key {
	return store.Key{Table: store.DeliveryState, PK: LeftPartition(userID), SK: chatID}
}

// LeftLogKey is the key of the same row in order of the time at which the chat was
// left, unix ms.
func LeftLogKey(userID string, at int64, chatID string) store.Key {
	return store.Key{Table: store.DeliveryState, PK: LeftPartition(userID), SK: LeftLogBound(at) + leftLog + chatID}
}

// LeftLogBound is a bound of queries: below the sort keys of chats that were left
// at a time or later, above those of chats that were left before.
func LeftLogBound(at int64) string { return leftLog + Number(max(at, 0)) }

// LeftLogFrom reads a row of [LeftLogKey].
func LeftLogFrom(userID string, row store.Row) UserChat {
	_, chatID, _ := strings.Cut(strings.TrimPrefix(row.Key.SK, leftLog), leftLog)
	return UserChatFrom(userID, chatID, row.Item)
}

// Item returns the row as an item.
func (u UserChat) Item() store.Item {
	a := make(attrs, 0, 17)
	a.optBool(AttrArchived, u.Archived)
	a.int(AttrChangedAt, u.ChangedAt)
	a.int(AttrDeliveredSequence, u.DeliveredSequence)
	a.optInt(store.ExpiresAtField, u.ExpiresAt)
	a.str("history", string(u.History))
	a.int("joined_sequence", u.JoinedSequence)
	a.int("joined_version", u.JoinedVersion)
	a.optInt(AttrLeftVersion, u.LeftVersion)
	a.optInt(AttrMutedUntil, u.MutedUntil)
	a.optInt(AttrOwnCount, u.OwnCount)
	a.optInt(AttrOwnFrom, u.OwnFrom)
	a.optInt(AttrOwnLast, u.OwnLast)
	a.optStr(attrPeer, u.Peer)
	a.optInt(AttrPeerReadSequence, u.PeerReadSequence)
	a.int(AttrReadSequence, u.ReadSequence)
	a.optInt(AttrRevision, u.Revision)
	a.optStr(AttrRole, string(u.Role))
	return a.item()
}

// UserChatFrom reads the row of a user. The row holds on to nothing of the item:
// lists of rows are long.
func UserChatFrom(userID, chatID string, it store.Item) UserChat {
	u := UserChat{UserID: userID, ChatID: chatID}
	for i := range it { // one pass: lists of rows are long
		v := it[i].Value
		switch it[i].Name {
		case "history":
			u.History = known(v.Str(), All, SinceJoined)
		case "joined_sequence":
			u.JoinedSequence = v.Int64()
		case "joined_version":
			u.JoinedVersion = v.Int64()
		case AttrReadSequence:
			u.ReadSequence = v.Int64()
		case AttrDeliveredSequence:
			u.DeliveredSequence = v.Int64()
		case AttrMutedUntil:
			u.MutedUntil = v.Int64()
		case AttrArchived:
			u.Archived = v.True()
		case AttrLeftVersion:
			u.LeftVersion = v.Int64()
		case AttrChangedAt:
			u.ChangedAt = v.Int64()
		case AttrRevision:
			u.Revision = v.Int64()
		case AttrRole:
			u.Role = known(v.Str(), Owner, Admin, Member)
		case attrPeer:
			u.Peer = strings.Clone(v.Str())
		case AttrPeerReadSequence:
			u.PeerReadSequence = v.Int64()
		case AttrOwnCount:
			u.OwnCount = v.Int64()
		case AttrOwnFrom:
			u.OwnFrom = v.Int64()
		case AttrOwnLast:
			u.OwnLast = v.Int64()
		case store.ExpiresAtField:
			u.ExpiresAt = v.Int64()
		}
	}
	return u
}

// known returns a word that is one of some as that one, which holds on to no item.
func known[S ~string](word string, of ...S) S {
	for _, s := range of {
		if word == string(s) {
			return s
		}
	}
	return S(word)
}

// OwnUnread is the number of the user's own messages after ReadSequence, and the sequence of the
// last of them: 0 and 0 if there are none. They are not unread.
func (u UserChat) OwnUnread() (count, last int64) {
	switch {
	case u.OwnLast <= u.ReadSequence:
		return 0, 0
	case !u.OwnCounted(): // too few of them, so that no message of others is missed
		return 1, u.OwnLast
	}
	return u.OwnCount, u.OwnLast
}

// OwnCounted reports whether OwnCount counts from ReadSequence. It does not where a release without
// OwnFrom has raised ReadSequence, until the next mark.
func (u UserChat) OwnCounted() bool { return u.OwnFrom == u.ReadSequence }

// Unread is the number of messages of others after ReadSequence in a chat that has a number of messages. The row may
// be newer than that number, and count own messages beyond it.
func (u UserChat) Unread(sequence int64) int64 {
	own, last := u.OwnUnread()
	return max(max(sequence, last)-u.ReadSequence-own, 0)
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

// Visible reports whether the user may see a change of the chat: changes committed before
// joining are hidden in a SINCE_JOINED chat, and changes committed after leaving in every
// chat. sequence is that of the message the change is about, 0 for none.
func (u UserChat) Visible(version, sequence int64) bool {
	if u.Left() && version > u.LeftVersion {
		return false
	}
	return version >= u.Floor() && (sequence == 0 || sequence >= u.FirstSequence())
}

// IsMember is the condition on a user's row that makes the user a member.
func IsMember() store.Condition { return isMember }

var isMember = store.Exists().Without(AttrLeftVersion)
