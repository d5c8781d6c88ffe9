package table

import (
	"errors"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/store"
)

// The write of an event demands who and what caused it, what it is and where it stands; the
// actor of what no user did is "system" (EV07). It stores nothing else: an event has no status
// of its publication.
func TestEventSaysWhoCausedIt(t *testing.T) {
	whole := Event{ChatID: "chat_01", Version: 7, EventID: "evt_01", Type: "ChatUpdated", Payload: []byte{1}}
	cause := Cause{Actor: "system", Correlation: "req_01", Causation: "evt_00"}
	w, err := whole.Put(cause)
	if err != nil || w.Op != store.OpPut || w.Key != EventKey("chat_01", 7) || len(w.Item) != 3 {
		t.Fatalf("%+v, %v; expected a put of the event's three attributes", w, err)
	}
	for name, without := range map[string]func(*Event, *Cause){
		"actor":       func(_ *Event, c *Cause) { c.Actor = "" },
		"correlation": func(_ *Event, c *Cause) { c.Correlation = "" },
		"causation":   func(_ *Event, c *Cause) { c.Causation = "" },
		"chat":        func(e *Event, _ *Cause) { e.ChatID = "" },
		"id":          func(e *Event, _ *Cause) { e.EventID = "" },
		"type":        func(e *Event, _ *Cause) { e.Type = "" },
		"version":     func(e *Event, _ *Cause) { e.Version = 0 },
		"payload":     func(e *Event, _ *Cause) { e.Payload = nil },
	} {
		e, c := whole, cause
		without(&e, &c)
		if _, err := e.Put(c); !errors.Is(err, ErrIncompleteEvent) || !strings.HasSuffix(err.Error(), "no "+name) {
			t.Errorf("without %s: %v, expected an error that says so", name, err)
		}
	}
}
