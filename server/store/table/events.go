package table

import (
	"github.com/parley-chat/parley/server/store"
)

// Event is an event of a chat, at once its change log. Table events, key chat_id
// and version. Rows never change.
type Event struct {
	ChatID  string
	Version int64
	EventID string
	Type    string
	Payload []byte // protobuf of the event's message, byte for byte as it was made
}

// EventKey is the key of an event.
func EventKey(chatID string, version int64) store.Key {
	return store.Key{Table: store.Events, PK: chatID, SK: Number(version)}
}

// Item returns the row as an item. The payload is stored compressed (see compress)
// as "body"; one that does not come back from that exactly as "payload".
func (e Event) Item() store.Item {
	a := make(attrs, 0, 3)
	var buf [1024]byte // enough for most
	body, ok := compress(buf[:0], e.Payload, e.ChatID, e.EventID, e.Type)
	if ok {
		a.bytes("body", body)
	}
	a.str("event_id", e.EventID)
	a.str("event_type", e.Type)
	if !ok {
		a.bytes("payload", e.Payload)
	}
	return a.item()
}

// EventFrom reads a row of events.
func EventFrom(r store.Row) (Event, error) {
	v, err := parseNumber(r.Key.SK)
	if err != nil {
		return Event{}, err
	}
	e := Event{
		ChatID:  r.Key.PK,
		Version: v,
		EventID: str(r.Item, "event_id"),
		Type:    str(r.Item, "event_type"),
	}
	if body := r.Item.Get("body"); body.Kind() != 0 {
		e.Payload, err = expand(body.Str(), e.ChatID, e.EventID, e.Type)
		return e, err
	}
	e.Payload = r.Item.Get("payload").Blob()
	return e, nil
}
