// Package restore puts events that a damaged log lost back into the outbox, from where
// the relay publishes them again with the ids that they had.
//
// The store is the truth, the log is derived from it: an event that is in the store, is
// not in a partition that lost records, and does not wait in the outbox already, is one
// that the log lost. The package owns this comparison and the rows; it neither finds
// the damage nor publishes.
//
// Concurrency: [Run] is called once, before anything publishes.
package restore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
)

// Slack is how long an event may have waited between its commit and its record: events
// older than the oldest record by more were trimmed, and are not restored.
const Slack = 24 * time.Hour

// Lost is a partition that lost records.
type Lost struct {
	kafka.Partition
	// Since is the time of the oldest record that it had, in unix ms; 0: it had all.
	Since int64
}

// Config says what to compare.
type Config struct {
	Store store.Store
	Clock func() time.Time
	Lost  []Lost
	// Topics say where events are published now, and where they were before.
	Topics versions.State
	Search search.Targets // where search events go; nil: nowhere
	// Partitions are the numbers of partitions of the topics of Search.
	Partitions map[string]int
	// Read reads the records that a partition still has.
	Read func(ctx context.Context, p kafka.Partition, each func(*kafka.Record)) error
}

// Report counts what was done.
type Report struct{ Chats, Events, Rows int }

// run is one comparison.
type run struct {
	Config
	since   map[kafka.Partition]int64
	present map[string]bool // ids of events
	report  Report
}

// Run writes rows for all events that were lost, oldest chat versions last, so that a
// repetition after a crash finds what is left to do.
func Run(ctx context.Context, cfg Config) (Report, error) {
	r := &run{Config: cfg, since: map[kafka.Partition]int64{}, present: map[string]bool{}}
	for _, l := range cfg.Lost {
		if old, ok := r.since[l.Partition]; !ok || l.Since < old {
			r.since[l.Partition] = l.Since
		}
	}
	for p := range r.since {
		for _, q := range append(r.earlier(p), p) {
			if err := cfg.Read(ctx, q, r.markPresent); err != nil {
				return r.report, err
			}
		}
	}
	for row, err := range store.ScanAll(ctx, cfg.Store, store.Scan{Table: store.ChatCounters, Segments: 1}) {
		if err != nil {
			return r.report, fmt.Errorf("read chats: %w", err)
		}
		if err := r.chat(ctx, row.Key.PK); err != nil {
			return r.report, fmt.Errorf("restore events of %s: %w", row.Key.PK, err)
		}
	}
	return r.report, r.searchEvents(ctx)
}

// markPresent records that an event is in the log.
func (r *run) markPresent(rec *kafka.Record) {
	for _, h := range rec.Headers {
		if h.Key == kafka.HeaderEventID {
			r.present[string(h.Value)] = true
		}
	}
}

// earlier lists the partitions of past versions of a topic in which the chats of a
// partition were before.
func (r *run) earlier(p kafka.Partition) (list []kafka.Partition) {
	base, _, _ := versions.Base(p.Topic)
	now, _ := r.Topics.Find(p.Topic)
	for _, v := range r.Topics.Of(base) {
		if v.Status != versions.Past {
			continue
		}
		common := min(v.Partitions, now.Partitions) // one divides the other
		for id := p.ID % common; id < v.Partitions; id += common {
			list = append(list, kafka.Partition{Topic: versions.Name(base, v.Number), ID: id})
		}
	}
	return list
}

// chat puts the lost events of one chat back.
func (r *run) chat(ctx context.Context, id string) error {
	since, found := int64(0), false
	for p, at := range r.since {
		base, _, _ := versions.Base(p.Topic)
		if r.Topics.PartitionOf(base, id) == p && (!found || at < since) {
			since, found = at, true
		}
	}
	if !found {
		return nil
	}
	lost, err := r.lost(ctx, id, since)
	if err != nil || len(lost) == 0 {
		return err
	}
	r.report.Chats++
	return r.write(ctx, id, lost)
}

// lost lists the versions of a chat's lost events, newest first.
func (r *run) lost(ctx context.Context, id string, since int64) (list []int64, err error) {
	// The relay keeps a chat with an unreadable row back until that is repaired: events that
	// such a row announces may be announced once more, behind it.
	waiting, err := outbox.Unpublished(ctx, r.Store, id)
	if err != nil {
		return nil, err
	}
	q := store.Query{Table: store.Events, PK: id, Descending: true, Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, r.Store, q) {
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		e, err := table.EventFrom(row)
		if err != nil {
			continue // it cannot be published, and never was
		}
		decoded, err := event.Unmarshal(e.Type, e.Payload)
		if err != nil {
			continue
		}
		if decoded.GetMetadata().GetEventTime().AsTime().Add(Slack).UnixMilli() < since {
			return list, nil // all that is left is older
		}
		p := r.Topics.PartitionOf(event.SpecOf(decoded).Topic, id)
		at, damaged := r.since[p]
		if !damaged || r.present[e.EventID] || (waiting.First > 0 && e.Version >= waiting.First) ||
			decoded.GetMetadata().GetEventTime().AsTime().Add(Slack).UnixMilli() < at {
			continue
		}
		list = append(list, e.Version)
	}
	return list, nil
}

// write writes rows for versions, newest first. If it is interrupted for any reason, the
// versions before the first row that exists are those still to be written.
func (r *run) write(ctx context.Context, id string, versions []int64) error {
	rows := Rows(id, versions, r.Clock().UnixMilli())
	r.report.Events += len(versions)
	for part := range slices.Chunk(rows, store.MaxPlanWrites) {
		if err := r.Store.Transact(ctx, store.Plan{Writes: part}); err != nil {
			return fmt.Errorf("write rows: %w", err)
		}
		r.report.Rows += len(part)
	}
	return nil
}

// Rows are the rows of the outbox that announce versions of a chat, which come newest
// first; at is their time in unix ms.
func Rows(chatID string, versions []int64, at int64) (rows []store.Write) {
	for len(versions) > 0 {
		n := 1
		for n < len(versions) && n < outbox.MaxRun && versions[n] == versions[n-1]-1 {
			n++
		}
		o := table.Outbox{Shard: event.Shard(chatID), AggregateID: chatID, FirstVersion: versions[n-1], Count: int64(n),
			CreatedAt: at}
		rows = append(rows, store.Write{Op: store.OpPut, Key: o.Key(), Item: o.Item()})
		versions = versions[n:]
	}
	return rows
}
