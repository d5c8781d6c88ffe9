package topic

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// MovedCounters are the highest number that a topic had, and the highest epoch of an owner.
type MovedCounters struct{ Number, Epoch int64 }

// ReadMovedCounters reads the counters of a store.
func ReadMovedCounters(ctx context.Context, s store.Store) (c MovedCounters, err error) {
	it, err := s.Get(ctx, table.TopicSlotsKey(), store.Strong)
	if err != nil {
		return c, err
	}
	of := it.Get(table.AttrTopicNumber).Int64()
	for slot := range max(of, 1) {
		if it, err = s.Get(ctx, table.TopicCountersKey(int(slot)), store.Strong); err != nil {
			return c, err
		}
		if made := it.Get(table.AttrTopicNumber).Int64(); made > 0 {
			c.Number = max(c.Number, int64(storage.Slot{Number: int(slot), Of: int(of)}.TopicNumber(made)))
		}
		c.Epoch = max(c.Epoch, it.Get(table.AttrEpoch).Int64())
	}
	return c, nil
}

// movedTopic is a topic by its row.
type movedTopic struct {
	name   string
	number int64
	config *topicv1.TopicConfig
}

func movedTopics(ctx context.Context, s store.Store) (list []movedTopic, err error) {
	for row, err := range store.ScanAll(ctx, s, store.Scan{Table: store.Topics, Segments: 1}) {
		if err != nil {
			return nil, fmt.Errorf("read topics: %w", err)
		}
		if !table.IsTopic(row.Key) {
			continue
		}
		t := movedTopic{row.Key.PK, table.TopicFrom(row.Item).Number, &topicv1.TopicConfig{}}
		text := table.TopicFrom(row.Item).Config
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), t.config); err != nil {
			return nil, fmt.Errorf("topic %s: %w", t.name, err)
		}
		list = append(list, t)
	}
	return list, nil
}

// MovedTopics are the topics of a store as a log has to know them, by number.
func MovedTopics(ctx context.Context, s store.Store) (map[uint64]commitlog.Topic, error) {
	list, err := movedTopics(ctx, s)
	m := map[uint64]commitlog.Topic{}
	for _, t := range list {
		m[uint64(t.number)] = commitlog.Topic{Number: uint64(t.number), Name: t.name, Partitions: t.config.GetPartitions(),
			Retention: t.config.GetMaxRetention().AsDuration(), Shared: storage.Shared(t.config)}
	}
	return m, err
}

// CompleteMove writes what belongs to a place with so many slots; 0: topics are not divided there. It may be
// repeated.
func CompleteMove(ctx context.Context, s store.Store, c MovedCounters, slots int) error {
	topics, err := movedTopics(ctx, s)
	if err != nil {
		return err
	}
	var writes []store.Write
	for _, t := range topics {
		if slots > 0 {
			writes = append(writes, putRow(table.TopicListKey(storage.SlotOf(t.name, slots), t.name),
				store.Attr{Name: table.AttrTopicNumber, Value: store.Int(t.number)}))
		}
		if storage.OfChats(t.config) {
			if err := restartGroups(ctx, s, t.number, t.config.GetPartitions()); err != nil {
				return fmt.Errorf("topic %s: %w", t.name, err)
			}
		}
	}
	number := store.Attr{Name: table.AttrTopicNumber, Value: store.Int(c.Number)}
	if slots > 0 {
		of := store.Attr{Name: table.AttrTopicNumber, Value: store.Int(int64(slots))}
		writes = append(writes, putRow(table.TopicSlotsKey(), of))
		number.Value = store.Int(c.Number/int64(slots) + 1) // of any slot, the next one is higher
	}
	for slot := range max(slots, 1) {
		writes = append(writes, putRow(table.TopicCountersKey(slot), number,
			store.Attr{Name: table.AttrEpoch, Value: store.Int(c.Epoch)}))
	}
	return writeRows(ctx, s, writes)
}

func putRow(k store.Key, attrs ...store.Attr) store.Write {
	return store.Write{Op: store.OpPut, Key: k, Item: store.NewItem(attrs...)}
}

func writeRows(ctx context.Context, s store.Store, writes []store.Write) error {
	for part := range slices.Chunk(writes, store.MaxBatchWrite) {
		if err := s.BatchWrite(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// restartGroups has the groups of a topic of chats begin with the first event of the log: their positions are
// those of another one.
func restartGroups(ctx context.Context, s store.Store, number int64, partitions int32) error {
	for n := range partitions {
		var writes []store.Write
		q := store.Query{Table: store.Subscriptions, PK: table.CursorPartition(number, n), Consistency: store.Strong}
		for row, err := range store.QueryAll(ctx, s, q) {
			if err != nil {
				return err
			}
			if row.Key == table.MachineKey(number, n) {
				writes = append(writes, store.Write{Op: store.OpDelete, Key: row.Key})
				continue
			}
			c := table.CursorFrom(row.Item)
			if c.State, err = firstCursor(c.State); err != nil {
				return fmt.Errorf("%s: %w", row.Key, err)
			}
			writes = append(writes, store.Write{Op: store.OpPut, Key: row.Key, Item: c.Item()})
		}
		if err := writeRows(ctx, s, writes); err != nil {
			return err
		}
	}
	return nil
}

// firstCursor is a cursor that is to receive everything, and has its counters.
func firstCursor(saved []byte) ([]byte, error) {
	old, err := machine.DecodeCursor(saved, machine.NoEnd)
	if err != nil {
		return nil, err
	}
	all, none := machine.SetOf(machine.Run{From: 0, To: machine.NoEnd}), machine.Set{}
	c := machine.Cursor{Generation: old.Generation, Processed: old.Processed, Filtered: old.Filtered, Failed: old.Failed,
		Missed: old.Missed, Required: &all, Optional: &none, Acked: &none, History: &none, Moves: old.Moves}
	return c.Append(nil), nil
}
