package upgrade

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// reference is what a record may become.
type reference struct {
	record.Reference
	publishedIn string
	at          int // of the record
	entry       *logdir.Entry
}

// references finds out which records of batches the rows of their events make, byte for byte: by
// their order, nil for the others.
func (r *run) references(ctx context.Context, batches [][]logdir.Entry, n int) ([]*reference, error) {
	found := make([]*reference, n)
	var list []*reference
	at := 0
	for _, b := range batches {
		for i := range b {
			if ref := referenceOf(&b[i]); ref != nil {
				ref.at = at
				list = append(list, ref)
			}
			at++
		}
	}
	slices.SortFunc(list, func(a, b *reference) int {
		return cmp.Or(cmp.Compare(a.Chat, b.Chat), cmp.Compare(a.Version, b.Version))
	})
	for len(list) > 0 {
		var keys []store.Key // an event may have several records, one for each replay
		of := make([]int, 0, store.MaxBatchGet)
		for _, ref := range list {
			key := table.EventKey(ref.Chat, ref.Version)
			if len(keys) == 0 || keys[len(keys)-1] != key {
				if len(keys) == store.MaxBatchGet {
					break
				}
				keys = append(keys, key)
			}
			of = append(of, len(keys)-1)
		}
		items, err := r.Store.BatchGet(ctx, keys, store.Eventual)
		if err != nil && !errors.Is(err, store.ErrCorrupt) {
			return nil, err
		}
		if err != nil { // the old log has what the rows had
			items = make([]store.Item, len(keys))
			r.reportRows(keys[0].PK, err)
		}
		for i, ref := range list[:len(of)] {
			if ref.made(keys[of[i]], items[of[i]]) {
				found[ref.at] = ref
			}
		}
		list = list[len(of):]
	}
	return found, nil
}

// reportRows says once that rows cannot be read.
func (r *run) reportRows(chat string, err error) {
	if !r.rows {
		r.Logger.Error("rows of events are damaged; the event log gets copies of what the old one has of them", "chat", chat,
			"error", err)
	}
	r.rows = true
}

// made reports whether the row of an event makes the record.
func (ref *reference) made(key store.Key, it store.Item) bool {
	if it == nil {
		return false
	}
	e, err := table.EventFrom(store.Row{Key: key, Item: it})
	if err != nil {
		return false
	}
	made, err := eventlog.Record(ref.Reference, ref.publishedIn, &e)
	if err != nil {
		return false
	}
	old := recordOf(ref.entry)
	return same(made.Key, old.Key) && same(made.Value, old.Value) && made.Time == old.Time &&
		slices.EqualFunc(made.Headers, old.Headers, func(a, b record.Header) bool {
			return a.Key == b.Key && same(a.Value, b.Value)
		})
}

// same compares bytes; null differs from empty.
func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

// referenceOf is the reference that a record may be; nil if it is none.
func referenceOf(e *logdir.Entry) *reference {
	if !event.Known(header(e, kafka.HeaderEventType)) {
		return nil
	}
	schema, payload, err := event.Unframe(e.Value)
	if err != nil {
		return nil
	}
	ref := &reference{entry: e, publishedIn: header(e, kafka.HeaderPublished), Reference: record.Reference{
		Chat: string(e.Key), Version: eventlog.VersionOf(payload), Schema: int32(schema), Time: e.Time,
	}}
	if !ref.Valid() {
		return nil
	}
	return ref
}
