package upgrade

import (
	"context"
	"fmt"
	"strings"

	"github.com/parley-chat/parley/server/backend/restore"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// The space that the store may need besides the records: its log, which has up to four files of 70
// MB, but not more than the written bytes; and tables that it writes again, in parts.
const (
	writeAhead = 288 << 20
	spare      = 64 << 20
)

// roomFor is how much the store may need for files of so many bytes.
func roomFor(bytes int64) int64 { return bytes + min(bytes, writeAhead) + spare }

// checkRoom refuses to begin without the room for what is left to move: the size of its files, as
// though no record became a reference.
func (r *run) checkRoom(ctx context.Context) error {
	sizes, err := logdir.Sizes(r.Dir)
	if err != nil {
		return err
	}
	numbers, err := r.numbers(ctx)
	if err != nil {
		return err
	}
	need := int64(0)
	for p, bytes := range sizes {
		r.report.Bytes += bytes
		moved := int64(0)
		if topic := numbers[p.Topic]; topic != 0 {
			if _, moved, err = r.Log.Bounds(ctx, commitlog.Partition{Topic: topic, Number: p.ID}); err != nil {
				return err
			}
		}
		if _, end := r.old.Bounds(p); moved < end {
			need += bytes
		}
	}
	if need == 0 || r.Room == nil {
		return nil
	}
	need = roomFor(need)
	if room := r.Room(); room < need {
		return fmt.Errorf("%w: the store may take %d MB more of the disk, and up to %d MB are needed for what is in %s: free "+
			"that much and start again; nothing was changed", store.ErrFull, max(0, room)>>20, need>>20, r.Dir)
	}
	return nil
}

// numbers are the topics that the event log in the store has.
func (r *run) numbers(ctx context.Context) (map[string]uint64, error) {
	list, err := r.Log.EventTopics(ctx)
	if err != nil {
		return nil, err
	}
	numbers := map[string]uint64{}
	for _, t := range list {
		numbers[t.Name] = t.Number
	}
	return numbers, nil
}

// checkAhead finds out whether the store lacks the last event of a partition. A published event was
// on the disk before, so the store has lost it.
func (r *run) checkAhead(ctx context.Context) error {
	var list []Event
	err := r.partitions(func(p kafka.Partition) error {
		var last *logdir.Entry
		_, end := r.old.Bounds(p)
		// Behind the last one there may be the end of its transaction.
		err := r.old.Committed(p, max(0, end-2), logdir.Reading{
			Batch: func(list []logdir.Entry) error {
				last = &list[len(list)-1]
				return nil
			},
			Bad: func(*logdir.BatchError) error { return nil }, // the move reports it
		})
		if err != nil || last == nil {
			return err
		}
		e := eventOf(last)
		if e == nil {
			return nil
		}
		it, err := r.Store.Get(ctx, table.EventKey(e.GetChatId(), e.GetMetadata().GetVersion()), store.Strong)
		if err != nil {
			return fmt.Errorf("compare the store with the log: %w", err)
		}
		if it == nil {
			list = append(list, Event{p, last.Offset, e.GetChatId(), e.GetMetadata().GetVersion(),
				e.GetMetadata().GetGeneration()})
		}
		return nil
	})
	if err != nil || len(list) == 0 {
		return err
	}
	return r.Behind(list)
}

// eventOf is a record's event; nil if it has none that this version knows.
func eventOf(e *logdir.Entry) event.Event {
	_, payload, err := event.Unframe(e.Value)
	if err != nil || len(payload) == 0 {
		return nil
	}
	decoded, err := event.Unmarshal(header(e, kafka.HeaderEventType), payload)
	if err != nil {
		return nil
	}
	return decoded
}

func header(e *logdir.Entry, name string) string {
	for i := range e.Headers {
		if e.Headers[i].Key == name {
			return string(e.Headers[i].Value)
		}
	}
	return ""
}

// shown bounds the lines about damage of a kind.
const shown = 10

// reportDamage says what the old log has lost, and what becomes of it.
func (r *run) reportDamage(ctx context.Context) error {
	for _, note := range r.old.Notes {
		r.Logger.Warn("a file of the old event log is damaged; what it had is made from the others", "file", note)
	}
	r.report.Damaged, r.report.Unreadable = len(r.old.Damage), len(r.old.Unreadable)
	for i, u := range r.old.Unreadable {
		if i == shown {
			r.Logger.Warn("more of the old log's records of groups and producers cannot be read", "records", len(r.old.Unreadable)-i)
			break
		}
		r.Logger.Warn("records of the old log's groups or producers cannot be read; all others are kept", "file", u.File,
			"at", u.At, "bytes", u.Bytes, "groups", strings.Join(u.Groups, " "), "lost", u.String())
	}
	for i, d := range r.old.Damage {
		if i == shown {
			r.Logger.Error("more partitions of the old event log are damaged", "partitions", len(r.old.Damage)-i)
		}
		if err := r.lost(ctx, d.Partition, d.Since, d.String(), i < shown); err != nil {
			return err
		}
	}
	return r.noticeAbsence(ctx)
}

// lost records that a partition has lost records, and says so.
func (r *run) lost(ctx context.Context, p kafka.Partition, since int64, damage string, show bool) error {
	remedy := "its events are published again from the store"
	v, _ := r.Versions.Find(p.Topic)
	kind := r.kind(p.Topic)
	if kind == kafka.Searches {
		v.Status = versions.Current // declared or not
	}
	_, _, declared := versions.Base(p.Topic)
	switch {
	case kind == 0 && !declared:
		remedy = "nothing is published again: the topic is not in use"
	case kind == kafka.DeadLetterKind || kind == kafka.SearchDeadLetterKind:
		remedy = "dead letters are in no other place; replay publishes events of the time again"
	case v.Status != versions.Current:
		remedy = "nothing is published again: all groups had read this topic when another took its place"
	}
	if show {
		r.Logger.Error("the old event log is damaged", "damage", damage, "remedy", remedy)
	}
	if v.Status != versions.Current {
		return nil
	}
	return r.state.lose(ctx, restore.Lost{Partition: p, Since: max(since, v.From)})
}

func (r *run) kind(topic string) kafka.Kind {
	for _, t := range r.Topics {
		if t.Name == topic {
			return t.Kind
		}
	}
	return 0
}

// noticeAbsence notices that a store with chats has no log at all, where nothing says what the
// log had.
func (r *run) noticeAbsence(ctx context.Context) error {
	if !r.absent() {
		return nil
	}
	page, err := r.Store.Scan(ctx, store.Scan{Table: store.ChatCounters, Segments: 1, Limit: 1})
	if err != nil || len(page.Rows) == 0 {
		return err
	}
	r.Logger.Warn("there is no event log; the store's events are published again", "dir", r.Dir)
	for _, t := range kafka.Topics() {
		v := r.Versions.Current(t.Name)
		n := v.Partitions
		if t.Kind == kafka.Searches || t.Kind == kafka.SearchDeadLetterKind {
			n = 1
		}
		for id := range n {
			l := restore.Lost{Partition: kafka.Partition{Topic: versions.Name(t.Name, v.Number), ID: id}, Since: v.From}
			if err := r.state.lose(ctx, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// restore puts what was lost back into the outbox. It works on a full disk: each row announces a
// run of events, and the server does not start without them.
func (r *run) restore(ctx context.Context) error {
	if len(r.state.lost) == 0 {
		return nil
	}
	now := r.Clock().UnixMilli()
	for i := range r.state.lost { // a time in the future is from a wrong clock
		if r.state.lost[i].Since > now {
			r.state.lost[i].Since = 0
		}
	}
	partitions := map[string]int{}
	for _, t := range r.Topics {
		if t.Kind == kafka.Searches {
			partitions[t.Name] = 1 // there is no log
		}
	}
	for _, t := range r.topics {
		if partitions[t.Name] > 0 {
			partitions[t.Name] = int(t.Partitions)
		}
	}
	done, err := restore.Run(ctx, restore.Config{Store: store.Freeing(r.Store), Clock: r.Clock, Lost: r.state.lost,
		Read: r.read, Topics: r.Versions, Search: r.Search, Partitions: partitions})
	if err != nil {
		return fmt.Errorf("restore the log: %w", err)
	}
	r.report.Restored = done.Events
	r.Logger.Warn("events that the old log lost will be published again", "events", done.Events, "chats", done.Chats)
	return nil
}

// read reads which events a partition of the old log has, for package restore: headers are all
// that it checks.
func (r *run) read(_ context.Context, p kafka.Partition, each func(*kafka.Record)) error {
	return r.old.Committed(p, 0, logdir.Reading{
		Batch: func(list []logdir.Entry) error {
			for i := range list {
				rec := &kafka.Record{Topic: p.Topic, Partition: p.ID, Offset: list[i].Offset}
				for _, h := range list[i].Headers {
					rec.Headers = append(rec.Headers, kafka.Header{Key: h.Key, Value: h.Value})
				}
				each(rec)
			}
			return nil
		},
		Bad: func(*logdir.BatchError) error { return nil },
	})
}
