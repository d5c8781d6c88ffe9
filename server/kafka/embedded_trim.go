package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/kafka/logdir"
)

// trimTo is the percentage of a limit that a trim leaves. The rest is for what is published
// until the next one.
const trimTo = 90

// hasRoom reports whether the cap has room for one segment of each partition. A trim leaves
// the segments that are written to, so with more partitions the log would stay full.
func (b *Broker) hasRoom(partitions int32) bool {
	return int64(partitions)*logdir.SegmentBytes(b.cfg.MaxBytes) <= b.cfg.MaxBytes
}

// Bytes is the size of the log on the disk, as far as it can be read.
func (b *Broker) Bytes() int64 {
	list, _ := logdir.Segments(b.cfg.Dir)
	return logdir.Total(list)
}

// Trim removes the oldest segments of each kind of topics that has used up its share of the
// cap, and returns how many bytes each kind may still write. No record of the kind may be
// published while that is not above 0. The segment that is written to always stays: an empty
// partition would start at offset 0 again after a restart.
//
// After an error the result counts what could be measured, with the segments that should have
// gone and are still there; it is nil if nothing could be measured.
func (b *Broker) Trim() (map[Kind]int64, error) {
	list, err := logdir.Segments(b.cfg.Dir)
	if err != nil {
		err = fmt.Errorf("measure log: %w", err)
		if len(list) == 0 {
			return nil, err
		}
	}
	topics := map[string]Topic{}
	for _, t := range *b.topics.Load() {
		topics[t.Name] = t
	}
	list, _ = b.split(list)
	of := map[Kind][]logdir.Segment{}
	for _, s := range list {
		kind := Searches // of a topic that search events were sent to under another setting
		if t, ok := topics[s.Topic]; ok {
			kind = t.Kind
		}
		of[kind] = append(of[kind], s)
	}
	errs := []error{err}
	room, rest := map[Kind]int64{}, b.cfg.MaxBytes
	trim := func(kind Kind, limit int64) {
		limit = max(limit, b.cfg.MaxBytes/shares*limits[kind].share, b.active(of[kind]))
		target := limit * trimTo / 100
		cut := map[Partition]logdir.Segment{} // the first segment that stays
		left := logdir.Oldest(of[kind], target, target, b.removable(topics, of[kind], limits[kind].kept), cut)
		errs = append(errs, b.cut(topics, cut))
		for _, s := range of[kind] {
			if first, failed := cut[s.Partition]; failed && s.Base < first.Base {
				left += s.Bytes
			}
		}
		room[kind], rest = limit-left, rest-left
	}
	for _, kind := range Kinds()[1:] {
		trim(kind, 0)
	}
	trim(Chats, rest) // they may use what the others leave
	return room, errors.Join(errs...)
}

// split splits segments into those of partitions that the broker has, and others. Others are
// left after the broker's list of topics was lost and made again from the declared ones, of
// topics that search events were sent to under another setting. The broker neither reads nor
// trims them, and a start that has the topic in its setting finds their records again. So they
// stay, and have no share of the cap.
func (b *Broker) split(list []logdir.Segment) (known, others []logdir.Segment) {
	there := map[Partition]bool{}
	for _, s := range list {
		has, asked := there[s.Partition]
		if !asked {
			has = b.cluster.PartitionInfo(s.Topic, s.ID) != nil
			there[s.Partition] = has
		}
		if has {
			known = append(known, s)
		} else {
			others = append(others, s)
		}
	}
	return known, others
}

// reportOthers logs, for each topic, the files of partitions that the broker does not have.
func (b *Broker) reportOthers() {
	list, _ := logdir.Segments(b.cfg.Dir) // a trim reports the error
	_, others := b.split(list)
	bytes := map[string]int64{}
	for _, s := range others {
		bytes[s.Topic] += s.Bytes
	}
	if b.cfg.Logger == nil {
		return
	}
	for _, topic := range slices.Sorted(maps.Keys(bytes)) {
		b.cfg.Logger.Warn("the log has files of a topic that is not in use; they are never trimmed", "topic", topic,
			"bytes", bytes[topic])
	}
}

// active is how many bytes there are in segments that are written to, which always stay, and
// one segment more: a limit below that would leave no room for good.
func (b *Broker) active(list []logdir.Segment) int64 {
	last, n := map[Partition]logdir.Segment{}, logdir.SegmentBytes(b.cfg.MaxBytes)
	for _, s := range list {
		if l, ok := last[s.Partition]; !ok || s.Base > l.Base {
			last[s.Partition] = s
		}
	}
	for _, s := range last {
		n += s.Bytes
	}
	return n
}

// removable returns a function that reports whether everything of a partition below an offset
// may go: it is known to be on the disk, was written longer ago than kept, and has been read
// by all readers of the topic if its kind waits for them. Nothing is recorded of topics that
// are no longer in use.
func (b *Broker) removable(
	topics map[string]Topic, list []logdir.Segment, kept time.Duration,
) func(Partition, int64) bool {
	young, now := map[Partition]int64{}, time.Now() // by partition, the first offset that is too young
	for _, s := range list {
		age := now.Sub(s.At) // negative after the clock was set back
		if first, ok := young[s.Partition]; age >= 0 && age < kept && (!ok || s.Base < first) {
			young[s.Partition] = s.Base
		}
	}
	b.syncing.Lock()
	marks := b.marks // it is replaced, never changed
	b.syncing.Unlock()
	return func(p Partition, offset int64) bool {
		if first, ok := young[p]; ok && offset > first {
			return false
		}
		t, used := topics[p.Topic]
		if !used {
			return true
		}
		if marks[p].End < offset {
			return false
		}
		return t.Kind != Chats ||
			!slices.ContainsFunc(t.Readers, func(group string) bool { return b.committed(group, p.Topic, p.ID) < offset })
	}
}

// cut removes everything before some segments. It first records that this is no loss. What is
// in the map afterwards could not be removed.
func (b *Broker) cut(topics map[string]Topic, first map[Partition]logdir.Segment) error {
	if len(first) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), recoverTimeout)
	defer cancel()
	b.syncing.Lock()
	defer b.syncing.Unlock()
	marks := maps.Clone(b.marks)
	for p, s := range first {
		if _, used := topics[p.Topic]; !used {
			continue
		}
		m := marks[p]
		m.Start, m.Since = s.Base, s.FirstTime()
		if m.Since == 0 {
			m.Since = time.Now().UnixMilli()
		}
		marks[p] = m
	}
	if err := b.keep(ctx, marks); err != nil {
		return err
	}
	var errs []error
	for p, s := range first {
		if err := b.cluster.DeleteRecords(p.Topic, p.ID, s.Base); err != nil {
			errs = append(errs, fmt.Errorf("trim %s: %w", p, err))
			continue
		}
		delete(first, p)
	}
	return errors.Join(errs...)
}

func (b *Broker) committed(group, topic string, partition int32) int64 {
	info := b.cluster.GroupInfo(group)
	if info == nil {
		return 0
	}
	return info.Commits[topic][partition].Offset
}
