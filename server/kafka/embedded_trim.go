package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/kafka/logdir"
)

// Shares of the log's cap.
const (
	letterShare = 8  // dead letters may use one of this many parts
	trimTo      = 90 // percent of the cap that a trim leaves
)

// hasRoom reports whether the cap has room for one segment of each partition. A trim leaves
// the segments that are written to, so with more partitions the log would stay full.
func (b *Broker) hasRoom(partitions int32) bool {
	return int64(partitions)*logdir.SegmentBytes(b.cfg.MaxBytes) <= b.cfg.MaxBytes
}

// Bytes is the size of the log on the disk.
func (b *Broker) Bytes() int64 {
	list, err := logdir.Segments(b.cfg.Dir)
	if err != nil {
		return 0
	}
	return logdir.Total(list)
}

// Trim removes the oldest segments beyond the cap that all groups have read, and
// reports whether the log is still larger than its cap. Dead letters, which no group must
// read, have a part of the cap of their own, from which the oldest are removed. The segment
// that is written to always stays: an empty partition would start at offset 0 again after a
// restart.
func (b *Broker) Trim() (full bool, err error) {
	list, err := logdir.Segments(b.cfg.Dir)
	if err != nil {
		return false, fmt.Errorf("trim log: %w", err)
	}
	letters := slices.DeleteFunc(slices.Clone(list), func(s logdir.Segment) bool { return s.Topic != DeadLetters })
	events := slices.DeleteFunc(list, func(s logdir.Segment) bool { return s.Topic == DeadLetters })
	cut := map[Partition]logdir.Segment{} // the first segment that stays
	limit := b.cfg.MaxBytes / letterShare
	left := logdir.Oldest(letters, limit, limit*trimTo/100, b.readBy(nil), cut)
	left += logdir.Oldest(events, b.cfg.MaxBytes-left, b.cfg.MaxBytes*trimTo/100-left, b.readBy(b.cfg.Groups), cut)
	if len(cut) > 0 {
		if err := b.cut(cut); err != nil {
			return false, err
		}
	}
	return left > b.cfg.MaxBytes, nil
}

// readBy returns a function that reports whether all groups have read all below an offset.
func (b *Broker) readBy(groups []string) func(Partition, int64) bool {
	return func(p Partition, offset int64) bool {
		return !slices.ContainsFunc(groups, func(g string) bool { return b.committed(g, p.Topic, p.ID) < offset })
	}
}

// cut removes everything before some segments. It first records that this is no loss.
func (b *Broker) cut(first map[Partition]logdir.Segment) error {
	ctx, cancel := context.WithTimeout(context.Background(), recoverTimeout)
	defer cancel()
	b.syncing.Lock()
	defer b.syncing.Unlock()
	marks := maps.Clone(b.marks)
	for p, s := range first {
		m, known := marks[p]
		if !known || m.End < s.Base {
			delete(first, p) // not synced yet: the next trim removes it
			continue
		}
		m.Start, m.Since = s.Base, s.FirstTime()
		if m.Since == 0 {
			m.Since = time.Now().UnixMilli()
		}
		marks[p] = m
	}
	if err := b.keep(ctx, marks); err != nil {
		return err
	}
	for p, s := range first {
		if err := b.cluster.DeleteRecords(p.Topic, p.ID, s.Base); err != nil {
			return fmt.Errorf("trim %s: %w", p, err)
		}
	}
	return nil
}

func (b *Broker) committed(group, topic string, partition int32) int64 {
	info := b.cluster.GroupInfo(group)
	if info == nil {
		return 0
	}
	return info.Commits[topic][partition].Offset
}
