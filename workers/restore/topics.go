package restore

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/kafka/topicstore/inspect"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// epochs is what the epoch of each slot grows by: more than owners have begun since the copy. A
// server that stands still since then holds an epoch of theirs, which is never reached again, so
// that its writes are refused when it resumes.
const epochs = 1 << 20

// topics compares durable topics with their logs on Kafka, which were not restored. A topic that is
// made from now on gets a number that Kafka has not seen.
func topics(ctx context.Context, cfg Config, slots []inspect.Slot, say func(string, ...any)) error {
	if len(slots) == 0 {
		return nil
	}
	if err := installation(ctx, cfg, slots, say); err != nil {
		return err
	}
	for n, slot := range slots {
		names, err := topicsOf(ctx, cfg.Store, n)
		if err != nil {
			return err
		}
		made := int64(0)
		for number, name := range slot.Logs {
			made = max(made, (int64(number)-int64(n))/int64(len(slots)))
			if _, ok := names[number]; !ok {
				say("topic of Kafka %s: of a topic that was made after the copy; one of the same name continues it", name)
			}
		}
		for number, name := range names {
			if log, ok := slot.Logs[number]; !ok || log != record.Name(name) {
				say("topic %s: its log was removed after the copy; move its groups to the start of the new one: topics seek %[1]s GROUP earliest",
					name)
			}
		}
		if !cfg.Execute {
			continue
		}
		if err := raise(ctx, cfg.Store, n, made); err != nil {
			return err
		}
	}
	return nil
}

// topicsOf are the names of a slot's topics by their numbers.
func topicsOf(ctx context.Context, s store.Store, slot int) (map[uint64]string, error) {
	names := map[uint64]string{}
	list := store.Query{Table: store.Topics, PK: table.TopicListPartition(slot), Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, s, list) {
		if err != nil {
			return nil, fmt.Errorf("topics of slot %d: %w", slot, err)
		}
		names[uint64(row.Item.Get(table.AttrTopicNumber).Int64())] = row.Key.SK
	}
	return names, nil
}

// raise raises the counters of a slot.
func raise(ctx context.Context, s store.Store, slot int, made int64) error {
	key := table.TopicCountersKey(slot)
	it, err := s.Get(ctx, key, store.Strong)
	if err != nil {
		return fmt.Errorf("counters of slot %d: %w", slot, err)
	}
	u := store.Update{Add: []store.Increment{{Name: table.AttrEpoch, N: epochs}}}
	if made > it.Get(table.AttrTopicNumber).Int64() {
		u.Set = []store.Attr{{Name: table.AttrTopicNumber, Value: store.Int(made)}}
	}
	err = s.Transact(ctx, store.Plan{Writes: []store.Write{{Op: store.OpUpdate, Key: key, Update: u, Name: "counters"}}})
	if err != nil {
		return fmt.Errorf("counters of slot %d: %w", slot, err)
	}
	return nil
}

// installation compares the id of the installation with that which Kafka has. Tables that are older
// than the first durable topic have none, and take it over.
func installation(ctx context.Context, cfg Config, slots []inspect.Slot, say func(string, ...any)) error {
	owner := ""
	for _, s := range slots {
		if s.Installation != "" {
			owner = s.Installation
		}
	}
	key := table.TopicInstallationKey()
	it, err := cfg.Store.Get(ctx, key, store.Strong)
	if err != nil {
		return fmt.Errorf("id of the installation: %w", err)
	}
	own := it.Get(table.AttrInstallation).Str()
	switch {
	case owner == "", own == owner:
		return nil
	case own != "":
		return fmt.Errorf("%w: it says %s, the tables say %s", ErrForeign, owner, own)
	}
	say("the tables are older than the first durable topic: they take over the id that Kafka has")
	if !cfg.Execute {
		return nil
	}
	return cfg.Store.Transact(ctx, store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: key, Name: "installation",
		Item: store.NewItem(store.Attr{Name: table.AttrInstallation, Value: store.String(owner)})}}})
}
