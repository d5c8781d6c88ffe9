package table

import "github.com/parley-chat/parley/server/store"

// Event is an event of a chat, at once its change log. Table events, key chat_id
// and version. Rows never change.
type Event struct {
	ChatID  string
	Version int64
	EventID string
	Type    string
	Payload []byte // protobuf of the event's message
}

// EventKey is the key of an event.
func EventKey(chatID string, version int64) store.Key {
	return store.Key{Table: store.Events, PK: chatID, SK: Number(version)}
}

// Item returns the row as an item.
func (e Event) Item() store.Item {
	a := make(attrs, 0, 3)
	a.str("event_id", e.EventID)
	a.str("event_type", e.Type)
	a = append(a, store.Attr{Name: "payload", Value: store.Bytes(e.Payload)})
	return a.item()
}

// EventFrom reads a row of events.
func EventFrom(r store.Row) (Event, error) {
	v, err := parseNumber(r.Key.SK)
	if err != nil {
		return Event{}, err
	}
	return Event{
		ChatID:  r.Key.PK,
		Version: v,
		EventID: str(r.Item, "event_id"),
		Type:    str(r.Item, "event_type"),
		Payload: r.Item.Get("payload").Blob(),
	}, nil
}
