package table

import (
	"strings"
	"unicode/utf8"

	"github.com/parley-chat/parley/server/store"
)

// MaxPreview is the size of a preview in bytes.
const MaxPreview = 128

// Head is how far a chat has come, the chat's one point of serialization. Table
// chat_counters, key chat_id.
type Head struct {
	ChatID            string
	Version           int64 // changes of any kind, gapless
	Sequence          int64 // messages, gapless
	MembershipVersion int64 // changes of members or metadata
	ChangedAt         int64 // unix ms
	// unix ms: of the last message, or of the creation while there is none; 0 in rows of releases without it
	LastAt       int64
	LastSequence int64  // of the last message that is shown
	LastSender   string // the sender
	LastPreview  string // its beginning, at most MaxPreview bytes
}

// AttrVersion is the attribute that plans compare a head by.
const AttrVersion = "version"

// HeadKey is the key of a chat's head.
func HeadKey(chatID string) store.Key { return store.Key{Table: store.ChatCounters, PK: chatID} }

// Item returns the row as an item.
func (h Head) Item() store.Item {
	a := make(attrs, 0, 8)
	a.int(AttrChangedAt, h.ChangedAt)
	a.optInt("last_message_at", h.LastAt)
	a.optStr("last_preview", h.LastPreview)
	a.optStr("last_sender", h.LastSender)
	a.optInt("last_sequence", h.LastSequence)
	a.int("membership_version", h.MembershipVersion)
	a.int("sequence", h.Sequence)
	a.int(AttrVersion, h.Version)
	return a.item()
}

// Update returns the change of the row to h. It names every attribute, but leaves
// alone what a newer release may have added.
func (h Head) Update() store.Update {
	it := h.Item()
	var remove []string
	if h.LastPreview == "" { // a message without a text to show
		remove = append(remove, "last_preview")
	}
	return store.Update{Set: it, Remove: remove}
}

// HeadFrom reads the row of a chat.
func HeadFrom(chatID string, it store.Item) Head {
	h := Head{ChatID: chatID}
	for i := range it { // one pass: lists of heads are long
		v := it[i].Value
		switch it[i].Name {
		case AttrVersion:
			h.Version = v.Int64()
		case "sequence":
			h.Sequence = v.Int64()
		case "membership_version":
			h.MembershipVersion = v.Int64()
		case AttrChangedAt:
			h.ChangedAt = v.Int64()
		case "last_message_at":
			h.LastAt = v.Int64()
		case "last_sequence":
			h.LastSequence = v.Int64()
		case "last_sender":
			h.LastSender = v.Str()
		case "last_preview":
			h.LastPreview = v.Str()
		}
	}
	return h
}

// LastMoved is the time that puts the chat into its place in a list of chats: that
// of the last message, or of the creation. Where the row does not hold it, the last
// change stands for it.
func (h Head) LastMoved() int64 {
	if h.LastAt == 0 {
		return h.ChangedAt
	}
	return h.LastAt
}

// Preview cuts a text to MaxPreview bytes, between characters. It does not keep a longer text
// in memory: heads are cached.
func Preview(text string) string {
	if len(text) <= MaxPreview {
		return text
	}
	n := MaxPreview
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return strings.Clone(text[:n])
}
