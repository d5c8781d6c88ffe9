package table

import (
	"fmt"

	"github.com/parley-chat/parley/server/store"
)

// SearchEvents is events of searches that were recorded together. Table search_events, key
// stream and number of the first. A row of the outbox with the same key announces them until
// they are published. They expire, and can be published again until then.
type SearchEvents struct {
	Stream string
	First  int64 // number of the first event in its stream, from 1
	Count  int64
	At     int64 // unix ms
	// Events is encoded by package search.
	Events    []byte
	ExpiresAt int64 // unix s
}

// MaxSearchEvents and MaxSearchBytes bound the events of a row, and their encoding.
const (
	MaxSearchEvents = 100
	MaxSearchBytes  = 256 << 10
)

// SearchEventsKey is the key of the row whose first event has a number.
func SearchEventsKey(stream string, first int64) store.Key {
	return store.Key{Table: store.SearchEvents, PK: stream, SK: Number(first)}
}

// Item returns the row as an item.
func (e SearchEvents) Item() store.Item {
	a := make(attrs, 0, 4)
	a.int(AttrAt, e.At)
	a.int("count", e.Count)
	a.bytes("events", e.Events)
	a.optInt(store.ExpiresAtField, e.ExpiresAt)
	return a.item()
}

// SearchEventsFrom reads a row of search_events.
func SearchEventsFrom(r store.Row) (SearchEvents, error) {
	first, err := parseNumber(r.Key.SK)
	if err != nil {
		return SearchEvents{}, err
	}
	e := SearchEvents{Stream: r.Key.PK, First: first, Count: num(r.Item, "count"), At: num(r.Item, AttrAt),
		Events: r.Item.Get("events").Blob(), ExpiresAt: num(r.Item, store.ExpiresAtField)}
	if e.Count < 1 || e.Count > MaxSearchEvents || first < 1 {
		return e, fmt.Errorf("table: %d events from %d on are none of one row", e.Count, first)
	}
	return e, nil
}
