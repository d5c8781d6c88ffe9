package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka"
)

const (
	// trimTo is the percentage of a limit that a trim leaves. The rest is for what is published until
	// the next one.
	trimTo = 90
	// steps is in how many parts what is over a share is removed, of the oldest partition at a time.
	steps = 64
	// ageSlack is the part of a retention by which a record may exceed it: a trim each time that a
	// batch gets too old would be a commit each time.
	ageSlack = 100
	// unlimited is the room of events of chats, which have no share.
	unlimited = math.MaxInt64 / 2
	// reclaimParts is the part of the cap whose removal is worth a compaction.
	reclaimParts = 32
)

// Trim removes records by the settings of their topics: those that are older than retention.ms, and
// of each partition those beyond retention.bytes, as far as all readers of the topic have committed
// offsets beyond them.
//
// Each kind but events of chats has a share of the cap. Above it the oldest records go over all its
// topics: first those that readers have read; then, at the share, also the others, which the ledger
// says (GivenUp). Records that are younger than their kind is kept stay in any case. Events of chats
// are references, and wait for their readers without a limit: the number of waiting events is the
// bound, at some 60 bytes an event before compression.
//
// Trim returns how many bytes each kind may still write. No record of the kind may be published while
// that is not above 0. After an error the result counts what could be measured, with what should have
// gone and is still there; it is nil if nothing could be measured. It gives space back to the disk
// once that is worth it, which may take seconds. One call runs at a time.
func (l *Log) Trim(ctx context.Context) (map[kafka.Kind]int64, error) {
	l.trimming.Lock()
	defer l.trimming.Unlock()
	t := trim{log: l, now: l.cfg.Clock().UnixMilli(), committed: map[string]map[kafka.Partition]int64{},
		of: map[kafka.Kind][]*cut{}}
	x := l.index.Load()
	measured := 0
	for i := range x.topics {
		measured += t.measure(ctx, &x.topics[i], x.partitions[x.topics[i].Name])
	}
	if measured == 0 && len(t.errs) > 0 {
		return nil, errors.Join(t.errs...)
	}
	room := map[kafka.Kind]int64{kafka.Chats: unlimited}
	for _, kind := range kafka.Kinds() {
		for _, c := range t.of[kind] {
			t.retain(ctx, c)
		}
		if kind == kafka.Chats {
			t.remove(ctx, t.of[kind])
			continue
		}
		share := kind.Share(l.cfg.MaxBytes)
		t.limit(ctx, kind, share)
		t.remove(ctx, t.of[kind])
		room[kind] = share - total(t.of[kind])
	}
	t.errs = append(t.errs, l.cfg.Log.Reclaim(ctx, l.cfg.MaxBytes/reclaimParts))
	return room, errors.Join(t.errs...)
}

// Bytes is the size of the log, as far as it can be read: of its batches as stored, before
// compression. The rows to which references lead are not counted.
func (l *Log) Bytes() (n int64) {
	for _, parts := range l.index.Load().partitions {
		for _, p := range parts {
			b, _ := l.cfg.Log.Bytes(context.Background(), p.id) // a trim reports the error
			n += b
		}
	}
	return n
}

// trim is a call of Trim.
type trim struct {
	log       *Log
	now       int64 // unix ms
	committed map[string]map[kafka.Partition]int64
	of        map[kafka.Kind][]*cut
	errs      []error
}

// cut is where a partition is to begin.
type cut struct {
	part  *partition
	topic *kafka.Topic
	begin int64 // where it begins now
	end   int64
	read  int64 // below it all readers have read; the end without readers
	old   int64 // below it records are older than their kind is kept
	bytes int64 // as it is now
	first commitlog.Extent
	next  commitlog.Extent // the first batch that stays; zero Bytes: none does
}

// to is where the partition is to begin. Positions before the first batch that can be read go with
// that batch.
func (c *cut) to() int64 {
	switch {
	case c.next.Bytes == 0:
		return c.end
	case c.next == c.first:
		return c.begin
	}
	return c.next.Base
}

// removed is how many bytes the cut removes.
func (c *cut) removed() int64 {
	if c.next.Bytes == 0 {
		return c.bytes
	}
	return max(0, c.next.Before-c.first.Before)
}

func total(list []*cut) (n int64) {
	for _, c := range list {
		n += c.bytes - c.removed()
	}
	return n
}

func (t *trim) fail(c *partition, err error) {
	t.errs = append(t.errs, fmt.Errorf("trim %s: %w", c.name, err))
}

// measure finds the partitions of a topic that have something, and returns how many they are.
func (t *trim) measure(ctx context.Context, topic *kafka.Topic, parts []*partition) (found int) {
	for _, p := range parts {
		c := &cut{part: p, topic: topic}
		var ok bool
		var err error
		if c.begin, c.end, err = t.log.cfg.Log.Bounds(ctx, p.id); err == nil {
			c.first, ok, err = t.log.cfg.Log.ExtentFrom(ctx, p.id, 0)
		}
		if err == nil && ok {
			c.bytes, err = t.log.cfg.Log.Bytes(ctx, p.id)
		}
		if err == nil && ok {
			c.read, err = t.readers(ctx, topic, p)
		}
		if err == nil && ok {
			c.old, err = t.notKept(ctx, c)
		}
		if err != nil {
			t.fail(p, err)
			continue
		}
		if c.next = c.first; ok {
			found++
			t.of[topic.Kind] = append(t.of[topic.Kind], c)
		}
	}
	return found
}

// readers returns up to where all readers of a partition have read.
func (t *trim) readers(ctx context.Context, topic *kafka.Topic, p *partition) (int64, error) {
	read := int64(math.MaxInt64)
	for _, group := range topic.Readers {
		offsets, asked := t.committed[group]
		if !asked {
			var err error
			if offsets, err = t.log.cfg.Committed(ctx, group); err != nil {
				return 0, fmt.Errorf("how far %s has read: %w", group, err)
			}
			t.committed[group] = offsets
		}
		read = min(read, offsets[p.name])
	}
	return read, nil
}

// notKept returns up to where records are older than their kind is kept. Times in the future are from
// a wrong clock, and keep nothing.
func (t *trim) notKept(ctx context.Context, c *cut) (int64, error) {
	kept := c.topic.Kind.Kept()
	if kept == 0 {
		return c.end, nil
	}
	at, err := t.log.cfg.Log.PositionAt(ctx, c.part.id, time.UnixMilli(t.now-kept.Milliseconds()))
	if err != nil || at == c.end {
		return at, err
	}
	young, ok, err := t.log.cfg.Log.ExtentFrom(ctx, c.part.id, at)
	if err == nil && ok && young.Time > t.now {
		at = c.end
	}
	return at, err
}

// advance moves a cut to a position, or to the start of the batch that has it.
func (t *trim) advance(ctx context.Context, c *cut, to int64) {
	if to <= c.to() {
		return
	}
	next, ok, err := t.log.cfg.Log.ExtentFrom(ctx, c.part.id, to)
	switch {
	case err != nil:
		t.fail(c.part, err)
	case !ok || to >= c.end:
		c.next = commitlog.Extent{}
	default:
		c.next = next
	}
}

// retain cuts by the settings of the topic.
func (t *trim) retain(ctx context.Context, c *cut) {
	log := t.log.cfg.Log
	if ms := setting(c.topic, "retention.ms"); ms > 0 && c.first.Time < t.now-ms-ms/ageSlack {
		to, err := log.PositionAt(ctx, c.part.id, time.UnixMilli(t.now-ms))
		if err != nil {
			t.fail(c.part, err)
		}
		t.advance(ctx, c, min(to, c.read))
	}
	if limit := setting(c.topic, "retention.bytes"); limit > 0 && c.bytes > limit {
		to, err := log.PositionOf(ctx, c.part.id, c.first.Before+c.bytes-limit/100*trimTo)
		if err != nil {
			t.fail(c.part, err)
		}
		t.advance(ctx, c, min(to, c.read))
	}
}

// setting is a number in the settings of a topic; 0 if there is none.
func setting(t *kafka.Topic, name string) int64 {
	n, err := strconv.ParseInt(t.Configs[name], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// limit cuts the oldest records of a kind that has used up its share: what was read, and if that
// does not bring the kind below the share, also what was not.
func (t *trim) limit(ctx context.Context, kind kafka.Kind, share int64) {
	target := share * trimTo / 100
	if total(t.of[kind]) <= target {
		return
	}
	step := max(1, share/steps)
	t.oldest(ctx, t.of[kind], step, target, func(c *cut) int64 { return min(c.read, c.old) })
	if total(t.of[kind]) > share {
		t.oldest(ctx, t.of[kind], step, target, func(c *cut) int64 { return c.old })
	}
}

// oldest cuts the partition whose first batch is the oldest, by a step, until the kind has no more
// than the target, or nothing may go.
func (t *trim) oldest(ctx context.Context, list []*cut, step, target int64, limit func(*cut) int64) {
	list = slices.Clone(list)
	for left := total(list); left > target && len(list) > 0; left = total(list) {
		at := 0
		for i, c := range list {
			if c.next.Time < list[at].next.Time {
				at = i
			}
		}
		c, before := list[at], list[at].to()
		if c.next.Bytes > 0 {
			to, err := t.log.cfg.Log.PositionOf(ctx, c.part.id, c.next.Before+min(step, left-target))
			if err != nil {
				t.fail(c.part, err)
				to = before
			}
			t.advance(ctx, c, min(to, limit(c)))
		}
		if c.to() == before { // no more of it may go
			rest := c.bytes - c.removed()
			list = slices.Delete(list, at, at+1)
			target -= rest
		}
	}
}

// remove removes what was cut, after the ledger has what readers lose by that.
func (t *trim) remove(ctx context.Context, list []*cut) {
	if err := t.giveUp(ctx, list); err != nil {
		t.errs = append(t.errs, err)
		for _, c := range list { // records that were read may be removed all the same
			if c.to() > c.read {
				c.next = c.first
			}
		}
	}
	for _, c := range list {
		if c.to() <= c.begin {
			continue
		}
		// Readers see the start before the records go, so they never take the hole for a gap.
		t.log.tail.trimmed(c.part, c.to())
		if _, err := t.log.cfg.Log.Trim(ctx, c.part.id, c.to()); err != nil {
			t.fail(c.part, err)
			c.next = c.first
			continue
		}
	}
}

// giveUp records which readers lose records.
func (t *trim) giveUp(ctx context.Context, list []*cut) error {
	var losses []GivenUp
	for _, c := range list {
		if c.to() <= c.read {
			continue
		}
		for _, group := range c.topic.Readers {
			if from := max(c.begin, t.committed[group][c.part.name]); from < c.to() {
				losses = append(losses, GivenUp{Group: group, Partition: c.part.name, From: from, To: c.to(),
					Records: c.to() - from, At: time.UnixMilli(t.now)})
			}
		}
	}
	if len(losses) == 0 {
		return nil
	}
	if err := t.log.ledger.add(ctx, losses); err != nil {
		return err
	}
	for _, e := range losses {
		t.log.gaveUp.Add(e.Records)
		t.log.cfg.Logger.Error("a reader of the event log was given up for records that it had not read: their kind has "+
			"used up its share", "group", e.Group, "topic", e.Topic, "partition", e.ID, "from", e.From, "to", e.To-1,
			"records", e.Records, "remedy", "find out why the group does not read; the records are gone")
	}
	return nil
}

// LostToReaders is how many records groups of Parley have lost to trims since the start of the
// process.
func (l *Log) LostToReaders() int64 { return l.gaveUp.Load() }
