package eventlog

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// Publication is what is published of one row of the outbox, or of nothing that has a row.
type Publication struct {
	// Row is deleted in the commit that appends the records; the zero Key: none.
	Row store.Key
	// Chat is the chat of which the records are consecutive events, with the payloads that their rows
	// have; "": they are of none.
	Chat string
	// Last is the version of the last of these events.
	Last int64
	// Records have Topic and Partition. Publish sets Offset and, if it is zero, Timestamp. They belong
	// to the log afterwards: it passes them to readers, and nothing may change them.
	Records []*kafka.Record
}

// Publish appends the records of all publications and deletes their rows, in one commit. It returns
// when that is durable and readers can see it. A Timestamp is kept to the millisecond; one that is
// zero or in the future becomes the time of the call.
//
// After an error nothing of it is in the log, unless the error is store.ErrAmbiguous: then the disk
// has failed, and the store with it. Errors: commitlog.ErrNoTopic, commitlog.ErrInvalid,
// commitlog.ErrTooLarge for a record that no batch can hold, store.ErrFull, and those of the store.
//
// Positions are given, and become durable, in the order of the commits. Calls that run at the same
// time may return in another order: see partition.grow.
func (l *Log) Publish(ctx context.Context, list []Publication) error {
	w := writing{log: l, index: l.index.Load(), now: l.stamp.now(), generation: []byte(l.cfg.Generation),
		of: map[*partition]*appending{}}
	for i := range list {
		if err := w.add(&list[i]); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	if len(w.appends)+len(w.rows) == 0 {
		return nil
	}
	pending, err := l.cfg.Log.Publish(ctx, w.appends, w.rows)
	if err == nil {
		// Not until ctx ends: the commit is made, and readers must get it.
		err = pending.Wait(context.WithoutCancel(ctx))
	}
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	for _, a := range w.order {
		c := &chunk{of: a.part, base: pending.Appended[a.first].Base, records: a.records}
		for i, r := range c.records {
			r.Offset, r.Timestamp = c.base+int64(i), time.UnixMilli(w.timeOf(r))
		}
		a.part.grow(c)
		l.tail.add(c)
	}
	return nil
}

// writing is a call of Publish.
type writing struct {
	log        *Log
	index      *index
	now        int64 // unix ms
	generation []byte
	of         map[*partition]*appending
	order      []*appending
	appends    []commitlog.Append // those of a partition have consecutive positions, because it is one commit
	rows       []store.Key
}

// appending is what goes to one partition.
type appending struct {
	part    *partition
	records []*kafka.Record
	first   int // of its appends
	last    int // to which the next record is added if its form and size permit that
	size    int // of the last append, in bytes
}

func (w *writing) add(p *Publication) error {
	for i, r := range p.Records {
		part, err := w.index.partition(kafka.Partition{Topic: r.Topic, ID: r.Partition})
		if err != nil {
			return err
		}
		a := w.of[part]
		if a == nil {
			a = &appending{part: part, first: -1}
			w.of[part] = a
			w.order = append(w.order, a)
		}
		ref, ok := record.Reference{}, false
		if p.Chat != "" {
			ref, ok = w.reference(r, p.Chat, p.Last-int64(len(p.Records)-1-i))
		}
		if ok {
			w.refer(a, ref)
		} else if err := w.copy(a, r); err != nil {
			return err
		}
		a.records = append(a.records, r)
	}
	if p.Row != (store.Key{}) {
		w.rows = append(w.rows, p.Row)
	}
	return nil
}

// timeOf is the time that a record gets.
func (w *writing) timeOf(r *kafka.Record) int64 {
	if r.Timestamp.IsZero() {
		return w.now
	}
	return min(r.Timestamp.UnixMilli(), w.now)
}

// open returns the append of a partition that has room for an entry of a form and a size.
func (w *writing) open(a *appending, references bool, size int) *commitlog.Append {
	if a.first >= 0 {
		last := &w.appends[a.last]
		n := len(last.Records) + len(last.References.List)
		if references == (len(last.References.List) > 0) && n < commitlog.MaxMessages &&
			a.size+size <= commitlog.MaxBatchBytes {
			a.size += size
			return last
		}
	}
	a.last, a.size = len(w.appends), size
	if a.first < 0 {
		a.first = a.last
	}
	w.appends = append(w.appends, commitlog.Append{Partition: a.part.id})
	return &w.appends[a.last]
}

func (w *writing) copy(a *appending, r *kafka.Record) error {
	c := record.Record{Key: r.Key, Value: r.Value, Time: w.timeOf(r)}
	if len(r.Headers) > 0 {
		c.Headers = make([]record.Header, len(r.Headers))
	}
	for i, h := range r.Headers {
		c.Headers[i] = record.Header(h)
	}
	size := c.Size()
	if size > commitlog.MaxBatchBytes {
		return fmt.Errorf("%w: a record of %d bytes for %s", commitlog.ErrTooLarge, size, a.part.name)
	}
	to := w.open(a, false, size)
	to.Records = append(to.Records, c)
	return nil
}

func (w *writing) refer(a *appending, ref record.Reference) {
	one := record.References{List: []record.Reference{ref}}
	size := one.Size() // the list's own bytes once too often for each, which no limit is close to
	to := w.open(a, true, size+len(w.log.cfg.Generation))
	to.References.PublishedIn = w.log.cfg.Generation
	to.References.List = append(to.References.List, ref)
}

// reference returns the reference from which [Record] makes a record again, byte for byte, given
// that the store has the event: rows never change, and the version is the chat's, so the row is the
// one with the event's id. All else of the record is compared with what Record would make: frame,
// names and values of headers. That reads the metadata of the event, and no row.
func (w *writing) reference(r *kafka.Record, chat string, version int64) (ref record.Reference, ok bool) {
	schema, payload, err := event.Unframe(r.Value)
	if err != nil || len(payload) != len(r.Value)-frameSize || string(r.Key) != chat ||
		len(r.Headers) != headers {
		return ref, false
	}
	md, ok := metadataOf(payload)
	if !ok || md.version != uint64(version) || !event.Known(string(md.kind)) {
		return ref, false
	}
	for i, want := range [headers]kafka.Header{
		{Key: kafka.HeaderEventID, Value: md.id},
		{Key: kafka.HeaderEventType, Value: md.kind},
		{Key: kafka.HeaderGeneration, Value: md.generation},
		{Key: kafka.HeaderPublished, Value: w.generation},
	} {
		if got := &r.Headers[i]; got.Key != want.Key || got.Value == nil || !bytes.Equal(got.Value, want.Value) {
			return ref, false
		}
	}
	ref = record.Reference{Chat: chat, Version: version, Schema: int32(schema), Time: w.timeOf(r)}
	return ref, ref.Valid()
}

const (
	headers   = 4 // of an event's record
	frameSize = 6 // of the bytes before the event
)
