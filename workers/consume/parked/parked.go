// Package parked keeps, in the store, which keys of a consumer group are parked. Once the
// group has given up a record of a key, the key's later records would be worked on from a
// wrong state: they follow it to the dead letters, in order, until all of these are redriven
// or discarded.
//
// It owns the rows of parked keys. It does not own the records in Kafka (package consume) or
// the redrive (package deadletter).
//
// # Order
//
// A row names the last record that is parked, and is written before that record's dead letter.
// So a caller may release a key, by deleting its row, under two conditions. It has seen the
// dead letter of the last record and knows that this and all earlier ones are done with, and
// no record was added meanwhile. Where records come all the time, the caller holds the key
// first: meanwhile its records wait.
//
// Only the member of the group that owns a partition parks its keys: the plan demands the
// ownership that package crashlog has recorded. So an owner that reads the rows after it
// has claimed its partitions knows all of them.
//
// Concurrency: all functions may be called from many goroutines.
package parked

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// keepFor is longer than dead letters and what was done about them are kept.
const keepFor = 45 * 24 * time.Hour

// maxReason is how much of a reason a row keeps, in bytes.
const maxReason = 512

// Log parks the keys of a group, for one of its processes.
type Log struct {
	Store    store.Store
	Clock    func() time.Time
	Group    string
	Consumer string // id of the process, as it claims partitions
}

// ErrHeld says that a key is being released: its records wait.
var ErrHeld = errors.New("parked: the key is being released")

// Declared is the topic that a topic is a version of, or itself if it is none of Parley's.
func Declared(topic string) string {
	if base, _, ok := versions.Base(topic); ok {
		return base
	}
	return topic
}

// CanPark reports whether records of a key can be parked. Those without a key belong to no
// aggregate and have no order.
func CanPark(key []byte) bool { return len(key) > 0 && len(key) <= table.MaxParkedKey }

// Load reads the group's parked keys of a declared topic.
func (l *Log) Load(ctx context.Context, topic string) ([]table.Parked, error) {
	return List(ctx, l.Store, Select{Group: l.Group, Topic: topic})
}

// Failure is why a record was given up.
type Failure struct {
	Class, Reason string
	Attempts      int
}

// Begin parks the key of a record that was given up. It returns the key's row; if the key
// was parked already, the record is added.
func (l *Log) Begin(ctx context.Context, r *kafka.Record, f Failure) (table.Parked, error) {
	now := l.Clock()
	p := table.Parked{
		Group: l.Group, Topic: Declared(r.Topic), Key: r.Key, Failed: position(r), Class: f.Class,
		Reason: f.Reason[:min(len(f.Reason), maxReason)], Attempts: int64(f.Attempts), Since: now.UnixMilli(),
	}
	have, err := l.Store.Get(ctx, p.RowKey(), store.Strong)
	if err != nil {
		return p, err
	}
	if have != nil {
		return l.add(ctx, table.ParkedFrom(have), []*kafka.Record{r})
	}
	count(&p, []*kafka.Record{r}, now)
	return p, l.write(ctx, p, store.Absent())
}

// Follow adds records of a parked key, one or more, in order. It returns nil if the key has
// been released: then they are not parked. Errors: ErrHeld, and those of the store.
func (l *Log) Follow(ctx context.Context, records []*kafka.Record) (*table.Parked, error) {
	first := records[0]
	it, err := l.Store.Get(ctx, table.ParkedKey(l.Group, Declared(first.Topic), first.Key), store.Strong)
	if err != nil || it == nil {
		return nil, err
	}
	p, err := l.add(ctx, table.ParkedFrom(it), records)
	return &p, err
}

// add adds those of some records that a row does not count yet.
func (l *Log) add(ctx context.Context, p table.Parked, records []*kafka.Record) (table.Parked, error) {
	now := l.Clock()
	if p.HoldUntil > now.UnixMilli() {
		return p, ErrHeld
	}
	for len(records) > 0 && Counts(&p, records[0]) {
		records = records[1:]
	}
	if len(records) == 0 {
		return p, nil
	}
	was := store.Exists().Eq(table.AttrLast, store.Int(p.Last)).Eq(table.AttrHoldUntil, store.Int(p.HoldUntil))
	count(&p, records, now)
	return p, l.write(ctx, p, was)
}

// Counts reports whether a row counts a record of its key already, which comes again after a
// crash.
func Counts(p *table.Parked, r *kafka.Record) bool { return p.At == r.Topic && r.Offset <= p.Last }

// count adds records to a row.
func count(p *table.Parked, records []*kafka.Record, now time.Time) {
	last := records[len(records)-1]
	p.At, p.Partition, p.Last = last.Topic, int64(last.Partition), last.Offset
	p.Records += int64(len(records))
	for _, r := range records {
		p.Bytes += Size(r)
	}
	p.ExpiresAt = now.Add(keepFor).Unix()
}

// Size is what a record counts, in bytes.
func Size(r *kafka.Record) int64 { return int64(len(r.Key) + len(r.Value)) }

// write writes a row, if this process still owns the partition.
func (l *Log) write(ctx context.Context, p table.Parked, cond store.Condition) error {
	partition := table.AttemptsPartition(l.Group, p.At, int32(p.Partition))
	return l.Store.Transact(ctx, store.Plan{Writes: []store.Write{
		{Op: store.OpCheck, Key: table.OwnershipKey(partition), Name: "owner",
			Cond: store.Exists().Eq(table.AttrConsumer, store.String(l.Consumer))},
		{Op: store.OpPut, Key: p.RowKey(), Item: p.Item(), Cond: cond, Name: "parked"},
	}})
}

// position names a record.
func position(r *kafka.Record) string { return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset) }

// IsFirst reports whether a record is the one that a key is parked for.
func IsFirst(p *table.Parked, r *kafka.Record) bool { return p.Failed == position(r) }

// IsBefore reports whether a record was finished before the key was parked: its partition has
// it before the one that the key is parked for.
func IsBefore(p *table.Parked, r *kafka.Record) bool {
	at, number, ok := cutLast(p.Failed)
	if !ok || at != fmt.Sprintf("%s/%d", r.Topic, r.Partition) {
		return false
	}
	offset, err := strconv.ParseInt(number, 10, 64)
	return err == nil && r.Offset < offset
}

// cutLast divides a position into topic and partition, and offset.
func cutLast(position string) (partition, offset string, ok bool) {
	i := strings.LastIndexByte(position, '/')
	if i < 0 {
		return "", "", false
	}
	return position[:i], position[i+1:], true
}

// IsLast reports whether a record is the last one that a row counts.
func IsLast(p *table.Parked, r *kafka.Record) bool {
	return p.At == r.Topic && p.Partition == int64(r.Partition) && p.Last == r.Offset
}

// Hold has the records of a key wait until a time, so that the last of its dead letters can be
// reached. It returns the row, nil if the key is not parked.
func Hold(ctx context.Context, st store.Store, p table.Parked, until time.Time) (*table.Parked, error) {
	err := st.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpUpdate, Key: p.RowKey(), Cond: store.Exists(), Name: "parked",
		Update: store.Update{Set: []store.Attr{{Name: table.AttrHoldUntil, Value: store.Int(until.UnixMilli())}}},
	}}})
	if err != nil && !lost(err) {
		return nil, err
	}
	it, err := st.Get(ctx, p.RowKey(), store.Strong)
	if err != nil || it == nil {
		return nil, err
	}
	p = table.ParkedFrom(it)
	return &p, nil
}

// Release ends the parking of a key whose dead letters are all done with, up to that of the last
// record in the row as it was read. It returns false if records were added since.
func Release(ctx context.Context, st store.Store, p table.Parked) (bool, error) {
	err := st.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpDelete, Key: p.RowKey(), Name: "parked",
		Cond: store.Exists().Eq(table.AttrLast, store.Int(p.Last)).Eq(table.AttrAt, store.String(p.At)),
	}}})
	if lost(err) {
		return false, nil
	}
	return err == nil, err
}

func lost(err error) bool {
	_, ok := errors.AsType[*store.ConditionError](err)
	return ok
}
