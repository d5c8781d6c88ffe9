package people

import (
	"encoding/binary"
	"encoding/hex"
	"strconv"

	"github.com/parley-chat/parley/server/store"
)

// HashSize is the size of a refresh token's hash in bytes.
const HashSize = 32

// Session is one sign-in: the family of its refresh tokens, of which the row has hashes only.
// Table sessions, key user and session id.
type Session struct {
	UserID, SessionID string
	Device            string // what the client called it
	Hash              []byte // of the refresh token that is good now
	// Rotated are the tokens before it, the oldest first: at least the last one, and all that
	// may still be used again.
	Rotated   []Rotated
	CreatedAt int64 // unix ms
	UsedAt    int64 // when the tokens were refreshed last, unix ms
	ExpiresAt int64 // unix s
}

// Rotated is a refresh token that has a successor.
type Rotated struct {
	Hash [HashSize]byte
	At   int64 // when it got it, unix ms
}

// AttrHash is the attribute with the hash of the token that is good now.
const AttrHash = "hash"

// SessionKey is the key of a user's session.
func SessionKey(user, session string) store.Key {
	return store.Key{Table: store.Sessions, PK: user, SK: session}
}

// Item returns the row as an item.
func (s Session) Item() store.Item {
	return item(
		attr("created_at", store.Int(s.CreatedAt)),
		attr("device", optional(s.Device)),
		attr(store.ExpiresAtField, store.Int(s.ExpiresAt)),
		attr(AttrHash, store.Bytes(s.Hash)),
		attr("rotated", store.Bytes(packRotated(s.Rotated))),
		attr("used_at", store.Int(s.UsedAt)),
	)
}

// SessionFrom reads the row of a session.
func SessionFrom(r store.Row) Session {
	return Session{
		UserID: r.Key.PK, SessionID: r.Key.SK, Device: str(r.Item, "device"), Hash: r.Item.Get(AttrHash).Blob(),
		Rotated: unpackRotated(r.Item.Get("rotated").Blob()), CreatedAt: num(r.Item, "created_at"),
		UsedAt: num(r.Item, "used_at"), ExpiresAt: num(r.Item, store.ExpiresAtField),
	}
}

func packRotated(list []Rotated) []byte {
	b := make([]byte, 0, len(list)*(HashSize+timeSize))
	for _, r := range list {
		b = append(b, r.Hash[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(r.At))
	}
	return b
}

func unpackRotated(b []byte) []Rotated {
	list := make([]Rotated, 0, len(b)/(HashSize+timeSize))
	for ; len(b) >= HashSize+timeSize; b = b[HashSize+timeSize:] {
		at := binary.BigEndian.Uint64(b[HashSize:])
		list = append(list, Rotated{Hash: [HashSize]byte(b), At: int64(at)})
	}
	return list
}

// EndedSession is a session that has ended and whose access tokens may not be refused
// everywhere yet. Table sessions, key "#ended", which is no user's, and session id. The row
// goes when they are.
type EndedSession struct {
	SessionID string
	UserID    string
	Reason    string
	At        int64 // unix ms
	Until     int64 // when the last of its access tokens expires, unix ms
	ExpiresAt int64 // unix s
}

// EndedSessions is the partition of the sessions that have ended.
const EndedSessions = "#ended"

// EndedSessionKey is the key of a session that has ended.
func EndedSessionKey(session string) store.Key {
	return store.Key{Table: store.Sessions, PK: EndedSessions, SK: session}
}

// Item returns the row as an item.
func (e EndedSession) Item() store.Item {
	return item(
		attr("at", store.Int(e.At)),
		attr(store.ExpiresAtField, store.Int(e.ExpiresAt)),
		attr("reason", store.String(e.Reason)),
		attr("until", store.Int(e.Until)),
		attr(AttrUser, store.String(e.UserID)),
	)
}

// EndedSessionFrom reads the row of a session that has ended.
func EndedSessionFrom(r store.Row) EndedSession {
	return EndedSession{
		SessionID: r.Key.SK, UserID: str(r.Item, AttrUser), Reason: str(r.Item, "reason"), At: num(r.Item, "at"),
		Until: num(r.Item, "until"), ExpiresAt: num(r.Item, store.ExpiresAtField),
	}
}

// OpenedSessionsKey is the key of the row that has the number of sessions which a user began in
// an hour, given as hours since 1970, under AttrCount. Its partition is no user's.
func OpenedSessionsKey(user string, hour int64) store.Key {
	return store.Key{Table: store.Sessions, PK: "#opened:" + user, SK: strconv.FormatInt(hour, 10)}
}

// SpentToken is a token of an issuer that has begun a session, by what was signed of it. Table
// sessions, key "#spent:" with the hash in hex. It expires with the token's time.
type SpentToken struct {
	Hash      [HashSize]byte
	ExpiresAt int64 // unix s
}

// Key is the key of the row.
func (t SpentToken) Key() store.Key {
	return store.Key{Table: store.Sessions, PK: "#spent:" + hex.EncodeToString(t.Hash[:]), SK: "#"}
}

// Item returns the row as an item.
func (t SpentToken) Item() store.Item {
	return item(attr(store.ExpiresAtField, store.Int(t.ExpiresAt)))
}
