// Package eventlog is the event log that lies in the store: the topics of Kafka in one process, with
// what is published to them, their readers' view, and what goes when there is too much.
//
// Events of chats are stored as references, from which records are made when they are read: of a
// reference and the row of its event, the record that the relay publishes of the event. All other
// records are copies. The last records stay in memory.
//
// It owns the topics of the log, which records readers see and when, and what a reference becomes.
// It owns neither batches and their positions, which are package commitlog's, nor Kafka's protocol,
// nor how far groups have read, nor when events are published.
//
// Concurrency: all of it is safe for concurrent use.
package eventlog

import (
	"cmp"
	"context"
	"errors"
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

// Fields of an event and of its metadata.
const (
	fieldMetadata   protowire.Number = 1
	fieldEventID    protowire.Number = 1
	fieldEventType  protowire.Number = 2
	fieldGeneration protowire.Number = 5
	fieldVersion    protowire.Number = 12
)

// Record makes the record of an event: key, frame and headers are byte for byte those with
// which the relay publishes the event. publishedIn is the generation of the store in which it
// was published. The error wraps store.ErrCorrupt.
func Record(ref record.Reference, publishedIn string, e *table.Event) (record.Record, error) {
	md, ok := metadataOf(e.Payload)
	if !ok || !event.Known(e.Type) {
		return record.Record{}, fmt.Errorf("%w: event %d of chat %s is no %q", store.ErrCorrupt, ref.Version, ref.Chat,
			e.Type)
	}
	value, err := event.Frame(int(ref.Schema), e.Payload)
	if err != nil {
		return record.Record{}, fmt.Errorf("event %d of chat %s: %w", ref.Version, ref.Chat, err)
	}
	return record.Record{Key: []byte(ref.Chat), Value: value, Time: ref.Time, Headers: []record.Header{
		{Key: kafka.HeaderEventID, Value: md.id},
		{Key: kafka.HeaderEventType, Value: []byte(e.Type)},
		{Key: kafka.HeaderGeneration, Value: md.generation},
		{Key: kafka.HeaderPublished, Value: []byte(publishedIn)},
	}}, nil
}

// metadata is what an encoded event says of itself. Fields that the event does not have are
// empty, not null.
type metadata struct {
	id, kind, generation []byte
	version              uint64
}

// metadataOf finds the metadata of an encoded event.
func metadataOf(payload []byte) (md metadata, ok bool) {
	md = metadata{id: []byte{}, kind: []byte{}, generation: []byte{}}
	ok = each(payload, func(field protowire.Number, v []byte, _ uint64) bool {
		return field != fieldMetadata || v == nil || each(v, md.set)
	})
	return md, ok
}

// VersionOf is the version that an encoded event has in its chat; 0 if it has none, or cannot be read.
func VersionOf(payload []byte) int64 {
	md, ok := metadataOf(payload)
	if !ok {
		return 0
	}
	return int64(md.version)
}

func (md *metadata) set(field protowire.Number, v []byte, n uint64) bool {
	switch {
	case v == nil && field == fieldVersion:
		md.version = n
	case v == nil:
	case field == fieldEventID:
		md.id = v
	case field == fieldEventType:
		md.kind = v
	case field == fieldGeneration:
		md.generation = v
	}
	return true
}

// each calls f with the fields of a message, a length-delimited one as bytes that are not nil, a
// varint as a number, until f returns false. It reports whether these, and fields of other types,
// are all that the message has.
func each(message []byte, f func(field protowire.Number, value []byte, n uint64) bool) bool {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		var value []byte
		var number uint64
		switch kind {
		case protowire.BytesType:
			if value, n = protowire.ConsumeBytes(message); value == nil {
				value = []byte{}
			}
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(field, kind, message)
		}
		if n < 0 {
			return false
		}
		message = message[n:]
		if (kind == protowire.BytesType || kind == protowire.VarintType) && !f(field, value, number) {
			return false
		}
	}
	return true
}

// Records makes the records of references, in their order, from the rows of their events. All
// of the references are durable, so the rows are. Errors: store.ErrCorrupt, also if a row is
// missing, and those of the store.
func Records(ctx context.Context, s store.Store, refs record.References) ([]record.Record, error) {
	out, lost, err := readable(ctx, s, refs)
	for i := range lost {
		if err == nil && lost[i] != nil {
			err = lost[i]
		}
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// readable is Records that returns what can be made. lost has the error of each reference that
// is nothing, and is nil if all became records; err is one of the store.
func readable(
	ctx context.Context, s store.Store, refs record.References,
) (out []record.Record, lost []error, err error) {
	order := make([]int, len(refs.List)) // by chat and version, as the rows lie
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return compare(&refs.List[a], &refs.List[b]) })
	m := making{store: s, refs: refs, out: make([]record.Record, len(refs.List))}
	for len(order) > 0 {
		n := 0 // references of the keys; an event may have several, one for each replay
		for m.keys = m.keys[:0]; n < len(order); n++ {
			if n > 0 && compare(&refs.List[order[n-1]], &refs.List[order[n]]) == 0 {
				continue
			}
			if len(m.keys) == store.MaxBatchGet {
				break
			}
			ref := &refs.List[order[n]]
			m.keys = append(m.keys, table.EventKey(ref.Chat, ref.Version))
		}
		if err := m.fill(ctx, order[:n]); err != nil {
			return nil, nil, err
		}
		order = order[n:]
	}
	return m.out, m.lost, nil
}

func compare(x, y *record.Reference) int {
	return cmp.Or(strings.Compare(x.Chat, y.Chat), cmp.Compare(x.Version, y.Version))
}

// making makes records of references.
type making struct {
	store store.Store
	refs  record.References
	out   []record.Record
	lost  []error
	keys  []store.Key
}

// fill makes the records of references, which are in the order of their keys.
func (m *making) fill(ctx context.Context, order []int) error {
	items, err := m.store.BatchGet(ctx, m.keys, store.Eventual)
	var bad []error
	if errors.Is(err, store.ErrCorrupt) { // of one of the rows at least
		items, bad, err = m.singly(ctx)
	}
	if err != nil {
		return err
	}
	at := 0
	for n, i := range order {
		ref := &m.refs.List[i]
		if n > 0 && compare(&m.refs.List[order[n-1]], ref) != 0 {
			at++
		}
		switch {
		case bad != nil && bad[at] != nil:
			err = bad[at]
		case items[at] == nil:
			err = fmt.Errorf("%w: chat %s has no event %d, which is in the event log", store.ErrCorrupt, ref.Chat, ref.Version)
		default:
			m.out[i], err = m.one(ref, store.Row{Key: m.keys[at], Item: items[at]})
		}
		if err != nil {
			if m.lost == nil {
				m.lost = make([]error, len(m.out))
			}
			m.lost[i] = err
		}
	}
	return nil
}

// singly reads the rows of the keys one by one; bad has the errors of those that are corrupt.
func (m *making) singly(ctx context.Context) (items []store.Item, bad []error, err error) {
	items, bad = make([]store.Item, len(m.keys)), make([]error, len(m.keys))
	for i, k := range m.keys {
		items[i], err = m.store.Get(ctx, k, store.Eventual)
		if errors.Is(err, store.ErrCorrupt) {
			bad[i] = fmt.Errorf("event %s of chat %s: %w", k.SK, k.PK, err)
		} else if err != nil {
			return nil, nil, err
		}
	}
	return items, bad, nil
}

func (m *making) one(ref *record.Reference, row store.Row) (record.Record, error) {
	e, err := table.EventFrom(row)
	if err != nil {
		return record.Record{}, fmt.Errorf("event %d of chat %s: %w: %w", ref.Version, ref.Chat, store.ErrCorrupt, err)
	}
	return Record(*ref, m.refs.PublishedIn, &e)
}
