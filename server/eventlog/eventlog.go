// Package eventlog makes the records of the event log that lies in the store: of a reference
// and the row of its event, the record that the relay publishes of the event.
//
// It owns what a reference becomes. It owns neither the log, which is package commitlog's, nor
// when events are published.
//
// Concurrency: all of it may be used by many goroutines.
package eventlog

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Fields of an event and of its metadata that headers repeat.
const (
	fieldMetadata   protowire.Number = 1
	fieldEventID    protowire.Number = 1
	fieldGeneration protowire.Number = 5
)

// Record makes the record of an event: key, frame and headers are byte for byte those with
// which the relay publishes the event. publishedIn is the generation of the store in which it
// was published. The error wraps store.ErrCorrupt.
func Record(ref record.Reference, publishedIn string, e *table.Event) (record.Record, error) {
	id, generation, ok := metadata(e.Payload)
	if !ok || !event.Known(e.Type) {
		return record.Record{}, fmt.Errorf("%w: event %d of chat %s is no %q", store.ErrCorrupt, ref.Version, ref.Chat,
			e.Type)
	}
	value, err := event.Frame(int(ref.Schema), e.Payload)
	if err != nil {
		return record.Record{}, fmt.Errorf("event %d of chat %s: %w", ref.Version, ref.Chat, err)
	}
	return record.Record{Key: []byte(ref.Chat), Value: value, Time: ref.Time, Headers: []record.Header{
		{Key: kafka.HeaderEventID, Value: id},
		{Key: kafka.HeaderEventType, Value: []byte(e.Type)},
		{Key: kafka.HeaderGeneration, Value: generation},
		{Key: kafka.HeaderPublished, Value: []byte(publishedIn)},
	}}, nil
}

// metadata finds the id and the generation of an encoded event. They are empty, not null, where
// the event has none.
func metadata(payload []byte) (id, generation []byte, ok bool) {
	id, generation = []byte{}, []byte{}
	ok = each(payload, func(field protowire.Number, v []byte) bool {
		return field != fieldMetadata || each(v, func(field protowire.Number, v []byte) bool {
			switch field {
			case fieldEventID:
				id = v
			case fieldGeneration:
				generation = v
			}
			return true
		})
	})
	return id, generation, ok
}

// each calls f with the length-delimited fields of a message until f returns false, and
// reports whether that is all that the message has.
func each(message []byte, f func(field protowire.Number, value []byte) bool) bool {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(field, kind, message); n < 0 {
			return false
		}
		if kind == protowire.BytesType {
			if v, _ := protowire.ConsumeBytes(message); !f(field, v) {
				return false
			}
		}
		message = message[n:]
	}
	return true
}

// Records makes the records of references, in their order, from the rows of their events. All
// of the references are durable, so the rows are. Errors: store.ErrCorrupt, also if a row is
// missing, and those of the store.
func Records(ctx context.Context, s store.Store, refs record.References) ([]record.Record, error) {
	order := make([]int, len(refs.List)) // by chat and version, as the rows lie
	for i := range order {
		order[i] = i
	}
	compare := func(a, b int) int {
		x, y := &refs.List[a], &refs.List[b]
		if x.Chat != y.Chat {
			return strings.Compare(x.Chat, y.Chat)
		}
		return int(min(max(x.Version-y.Version, -1), 1)) // both are positive
	}
	slices.SortFunc(order, compare)
	out := make([]record.Record, len(refs.List))
	keys := make([]store.Key, 0, min(len(order), store.MaxBatchGet))
	for len(order) > 0 {
		n := 0 // references of the keys; an event may have several, one for each replay
		for keys = keys[:0]; n < len(order); n++ {
			if n > 0 && compare(order[n-1], order[n]) == 0 {
				continue
			}
			if len(keys) == store.MaxBatchGet {
				break
			}
			ref := &refs.List[order[n]]
			keys = append(keys, table.EventKey(ref.Chat, ref.Version))
		}
		items, err := s.BatchGet(ctx, keys, store.Eventual)
		if err != nil {
			return nil, err
		}
		if err := fill(out, order[:n], refs, keys, items); err != nil {
			return nil, err
		}
		order = order[n:]
	}
	return out, nil
}

// fill makes the records of references, which are in the order of their keys.
func fill(out []record.Record, order []int, refs record.References, keys []store.Key, items []store.Item) error {
	at := 0
	for n, i := range order {
		ref := refs.List[i]
		if n > 0 {
			if last := &refs.List[order[n-1]]; last.Chat != ref.Chat || last.Version != ref.Version {
				at++
			}
		}
		if items[at] == nil {
			return fmt.Errorf("%w: chat %s has no event %d, which is in the event log", store.ErrCorrupt, ref.Chat,
				ref.Version)
		}
		e, err := table.EventFrom(store.Row{Key: keys[at], Item: items[at]})
		if err != nil {
			return fmt.Errorf("event %d of chat %s: %w: %w", ref.Version, ref.Chat, store.ErrCorrupt, err)
		}
		if out[i], err = Record(ref, refs.PublishedIn, &e); err != nil {
			return err
		}
	}
	return nil
}
