package table

import (
	"errors"
	"fmt"
	"strings"

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

// EventVersion is the version of the event with a key.
func EventVersion(k store.Key) (int64, error) { return parseNumber(k.SK) }

// EventKey is the key of an event.
func EventKey(chatID string, version int64) store.Key {
	return store.Key{Table: store.Events, PK: chatID, SK: Number(version)}
}

// Cause is the actor and the cause of an event. Its payload has it; the row has no copy.
type Cause struct{ Actor, Correlation, Causation string }

// ErrIncompleteEvent reports that an event is not stored because its type, actor or cause is
// missing. Rows never change, so these could never be added.
var ErrIncompleteEvent = errors.New("table: incomplete event")

// Put returns the write that stores an event. It has no condition: the plan compares the
// chat's head, so that the event's version is free.
func (e Event) Put(c Cause) (store.Write, error) {
	var missing []string
	for _, f := range []struct{ name, value string }{
		{"chat", e.ChatID}, {"id", e.EventID}, {"type", e.Type}, {"actor", c.Actor}, {"correlation", c.Correlation},
		{"causation", c.Causation},
	} {
		if f.value == "" {
			missing = append(missing, f.name)
		}
	}
	if e.Version < 1 {
		missing = append(missing, "version")
	}
	if len(e.Payload) == 0 {
		missing = append(missing, "payload")
	}
	if len(missing) > 0 {
		return store.Write{}, fmt.Errorf("%w: no %s", ErrIncompleteEvent, strings.Join(missing, ", "))
	}
	return store.Write{Op: store.OpPut, Key: EventKey(e.ChatID, e.Version), Item: e.Item()}, nil
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

// EventType reads the type of an event, and leaves its payload compressed.
func EventType(r store.Row) string { return str(r.Item, "event_type") }

// EventFrom reads a row of events.
func EventFrom(r store.Row) (Event, error) {
	v, err := parseNumber(r.Key.SK)
	if err != nil {
		return Event{}, err
	}
	e := Event{ChatID: r.Key.PK, Version: v, EventID: str(r.Item, "event_id"), Type: EventType(r)}
	if body := r.Item.Get("body"); body.Kind() != 0 {
		e.Payload, err = expand(body.Str(), e.ChatID, e.EventID, e.Type)
		return e, err
	}
	e.Payload = r.Item.Get("payload").Blob()
	return e, nil
}
