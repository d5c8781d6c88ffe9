package table

import (
	"fmt"

	"github.com/parley-chat/parley/server/store"
)

// Message is a stored message. Table messages, key chat_id and sequence.
type Message struct {
	ChatID          string
	Sequence        int64
	MessageID       string
	SenderID        string
	Content         string
	ContentType     int64 // number of the API's enum
	ClientMessageID string
	CreatedAt       int64  // unix ms
	Version         int64  // of the chat in which the message last changed
	ServiceID       string // that sent it in the sender's name, if one did
}

// MessageKey is the key of a message.
func MessageKey(chatID string, sequence int64) store.Key {
	return store.Key{Table: store.Messages, PK: chatID, SK: Number(sequence)}
}

// Item returns the row as an item.
func (m Message) Item() store.Item {
	a := make(attrs, 0, 8)
	a.str("client_message_id", m.ClientMessageID)
	a.str("content", m.Content)
	a.int("content_type", m.ContentType)
	a.int("created_at", m.CreatedAt)
	a.str("message_id", m.MessageID)
	a.str("sender_id", m.SenderID)
	a.optStr("service_id", m.ServiceID)
	a.int(AttrVersion, m.Version)
	return a.item()
}

// MessageFrom reads a row of messages.
func MessageFrom(r store.Row) (Message, error) {
	seq, err := parseNumber(r.Key.SK)
	if err != nil {
		return Message{}, fmt.Errorf("message of %s: %w", r.Key.PK, err)
	}
	return Message{
		ChatID: r.Key.PK, Sequence: seq, MessageID: str(r.Item, "message_id"), SenderID: str(r.Item, "sender_id"),
		Content: str(r.Item, "content"), ContentType: num(r.Item, "content_type"),
		ClientMessageID: str(r.Item, "client_message_id"), CreatedAt: num(r.Item, "created_at"),
		Version: num(r.Item, AttrVersion), ServiceID: str(r.Item, "service_id"),
	}, nil
}
