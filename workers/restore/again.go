package restore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
)

// slack is how much earlier than the newest change of the copy a record may say that it came: by the
// clocks of two processes.
const slack = 2 * time.Minute

// again has consumers of Kafka take back what the tables do not have any more. Of each chat with
// records from after the copy, the newest events are committed again in the line that begins, and
// wait to be published: a consumer that gets a version which it has with another generation drops
// what it has from that version on. Without them it would keep what was lost until the chat
// changes again.
func again(ctx context.Context, cfg Config, newest time.Time, generation string, say func(string, ...any)) error {
	since := newest.Add(-slack)
	topics := map[string]map[string]bool{} // by chat
	err := cfg.Records(ctx, since, func(topic, chat string) {
		if topics[chat] == nil {
			topics[chat] = map[string]bool{}
		}
		topics[chat][topic] = true
	})
	if err != nil {
		return err
	}
	chats, later := 0, 0
	for _, id := range slices.Sorted(maps.Keys(topics)) {
		there, err := againOf(ctx, cfg, id, topics[id], generation)
		if err != nil {
			return fmt.Errorf("newest events of %s: %w", id, err)
		}
		if there {
			chats++
		} else if later++; later <= maxNamed {
			say("%s: was made after the copy; consumers of Kafka must remove it by themselves", id)
		}
	}
	say("%d chats with records on Kafka since %s, and %d that were made after the copy", chats,
		since.UTC().Format(time.RFC3339), later)
	return nil
}

// againOf commits the newest events of a chat again, from the newest of each of some topics on, at
// most outbox.MaxRun. It reports whether there is such a chat.
func againOf(ctx context.Context, cfg Config, id string, topics map[string]bool, generation string) (bool, error) {
	var events []table.Event // newest first
	run, missing := 0, len(topics)
	q := store.Query{Table: store.Events, PK: id, Descending: true, Limit: outbox.MaxRun, Consistency: store.Strong}
	page, err := cfg.Store.Query(ctx, q)
	if err != nil {
		return false, err
	}
	found := map[string]bool{}
	for _, row := range page.Rows {
		e, err := table.EventFrom(row)
		if err != nil {
			return true, err
		}
		decoded, err := event.Unmarshal(e.Type, e.Payload)
		if err != nil {
			return true, err
		}
		topic := event.SpecOf(decoded).Topic
		decoded.GetMetadata().Generation = generation
		if e.Payload, err = event.Marshal(decoded); err != nil {
			return true, err
		}
		events = append(events, e)
		if topics[topic] && !found[topic] {
			found[topic] = true
			run = len(events)
		}
		if len(found) == missing {
			break
		}
	}
	if events = events[:max(run, min(1, len(events)))]; len(events) == 0 {
		return false, nil
	}
	if !cfg.Execute {
		return true, nil
	}
	return true, commit(ctx, cfg, id, events, generation)
}

// commit stores events of a chat, newest first, and the row that has the relay publish them.
func commit(ctx context.Context, cfg Config, id string, events []table.Event, generation string) error {
	o := table.Outbox{Shard: event.Shard(id), AggregateID: id, FirstVersion: events[len(events)-1].Version,
		Count: int64(len(events)), CreatedAt: cfg.Clock().UnixMilli(), Replay: true, ReplayID: generation}
	var writes []store.Write
	for _, e := range events {
		writes = append(writes, store.Write{Op: store.OpPut, Key: table.EventKey(id, e.Version), Item: e.Item()})
	}
	var err error
	for chunk := range slices.Chunk(writes, store.MaxBatchWrite) {
		err = errors.Join(err, cfg.Store.BatchWrite(ctx, chunk))
	}
	if err != nil {
		return err
	}
	return cfg.Store.BatchWrite(ctx, []store.Write{{Op: store.OpPut, Key: o.Key(), Item: o.Item()}})
}
