package table

import "github.com/parley-chat/parley/server/store"

// Chat is what the members of a chat share besides messages. Table chats, key
// chat_id.
type Chat struct {
	ChatID      string
	Type        Type
	Name        string
	CreatedBy   string
	Status      Status
	History     History
	MemberCount int64    // members and pending members, exact in every committed state
	DirectUsers []string // the two people of a direct chat
	CreatedAt   int64    // unix ms
	UpdatedAt   int64    // unix ms
	Version     int64    // of the last change of metadata or membership
}

// Attributes of a chat that plans test or change.
const (
	AttrName        = "name"
	AttrStatus      = "status"
	AttrChatType    = "chat_type"
	AttrMemberCount = "member_count"
	AttrUpdatedAt   = "updated_at"
)

// ChatKey is the key of a chat.
func ChatKey(chatID string) store.Key { return store.Key{Table: store.Chats, PK: chatID} }

// Item returns the row as an item.
func (c Chat) Item() store.Item {
	a := make(attrs, 0, 10)
	a.str(AttrChatType, string(c.Type))
	a.int("created_at", c.CreatedAt)
	a.str("created_by", c.CreatedBy)
	a.list("direct_users", c.DirectUsers)
	a.str("history", string(c.History))
	a.int(AttrMemberCount, c.MemberCount)
	a.optStr(AttrName, c.Name)
	a.str(AttrStatus, string(c.Status))
	a.int(AttrUpdatedAt, c.UpdatedAt)
	a.int(AttrVersion, c.Version)
	return a.item()
}

// ChatFrom reads the row of a chat.
func ChatFrom(chatID string, it store.Item) Chat {
	return Chat{
		ChatID:      chatID,
		Type:        Type(str(it, AttrChatType)),
		Name:        str(it, AttrName),
		CreatedBy:   str(it, "created_by"),
		Status:      Status(str(it, AttrStatus)),
		History:     History(str(it, "history")),
		MemberCount: num(it, AttrMemberCount),
		DirectUsers: it.Get("direct_users").Strings(),
		CreatedAt:   num(it, "created_at"),
		UpdatedAt:   num(it, AttrUpdatedAt),
		Version:     num(it, AttrVersion),
	}
}
