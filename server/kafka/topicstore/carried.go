package topicstore

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/kafka/topiclog"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
	"github.com/parley-chat/parley/server/kafka/transaction"
	"github.com/parley-chat/parley/server/store"
)

// carriedBytes is how much of a partition is read at once.
const carriedBytes = 1 << 20

// Carried calls each with the logs of all slots as the records that carry them to another engine, behind a
// key and in the order of keys, until each returns false. The logs must not change meanwhile. It keeps
// the producers of all slots in memory.
func Carried(ctx context.Context, cfg Config, after []byte, each func(key, value []byte) bool) error {
	client, err := transaction.NewReader(cfg.Addr, cfg.Options...)
	if err != nil {
		return err
	}
	defer client.Close()
	c := &carried{after: after, each: each,
		reader: topiclog.New(topiclog.Config{Client: client, Message: record.Message, Producer: record.Producer}),
		topics: map[uint64]state.Topic{}, starts: map[commitlog.Partition]int64{},
		windows: map[commitlog.Partition][]store.Record{}}
	for slot := range cfg.Slots {
		m, err := state.Load(ctx, c.reader, int32(slot))
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			return nil // no server has had topics
		}
		if err != nil {
			return err
		}
		c.take(m)
	}
	if len(after) > 0 {
		if c.from, c.position, err = commitlog.CarriedTo(after); err != nil {
			return err
		}
	}
	for _, number := range slices.Sorted(maps.Keys(c.topics)) {
		c.reader.Add(number, c.topics[number].Name)
		for n := range c.topics[number].Partitions {
			if more, err := c.partition(ctx, commitlog.Partition{Topic: number, Number: n}); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// carried is a reading of all logs.
type carried struct {
	reader   *topiclog.Log
	after    []byte
	from     commitlog.Partition // in which after is
	position int64               // with which its batches continue
	each     func(key, value []byte) bool
	topics   map[uint64]state.Topic
	starts   map[commitlog.Partition]int64
	windows  map[commitlog.Partition][]store.Record
}

func (c *carried) take(m *state.State) {
	maps.Copy(c.topics, m.Topics)
	maps.Copy(c.starts, m.Starts)
	m.DropIf(func(k state.Key, w *producers.Window) bool {
		w.Each(func(slot byte, p producers.Published) {
			c.windows[k.Partition] = append(c.windows[k.Partition],
				commitlog.CarriedPublished(k.Partition, commitlog.Published{Producer: k.ID, Slot: slot, Published: p}))
		})
		return false
	})
}

func (c *carried) give(r store.Record) bool {
	return bytes.Compare(r.Key, c.after) <= 0 || c.each(r.Key, r.Value)
}

// partition gives the records of a partition.
func (c *carried) partition(ctx context.Context, p commitlog.Partition) (more bool, err error) {
	before := p.Topic < c.from.Topic || p.Topic == c.from.Topic && p.Number < c.from.Number
	if len(c.after) > 0 && before {
		return true, nil
	}
	from, end, err := c.reader.Bounds(ctx, p)
	if err != nil {
		return false, err
	}
	from = max(from, c.starts[p])
	if from > 0 && !c.give(commitlog.CarriedStart(p, from)) {
		return false, nil
	}
	if len(c.after) > 0 && p == c.from {
		from = max(from, c.position)
	}
	for from < end {
		batches, err := c.reader.ReadTo(ctx, p, from, end, carriedBytes)
		if err != nil {
			return false, err
		}
		if len(batches) == 0 { // ends of transactions only
			break
		}
		for _, b := range batches {
			if !c.give(commitlog.CarriedBatch(p, b)) {
				return false, nil
			}
			from = b.End()
		}
	}
	list := c.windows[p]
	slices.SortFunc(list, func(a, b store.Record) int { return bytes.Compare(a.Key, b.Key) })
	for _, r := range list {
		if !c.give(r) {
			return false, nil
		}
	}
	return true, nil
}
