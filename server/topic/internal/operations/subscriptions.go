package operations

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// maxOrphans is how many cursors that belong to no subscription a run deletes.
const maxOrphans = 100_000

// cleanAll deletes subscriptions that ended long ago, and cursors that belong to none.
func (j *Jobs) cleanAll(ctx context.Context, r *run) {
	keep := j.schedule().Keep
	orphans := maxOrphans
	for _, t := range j.topics() {
		if r.over() {
			return
		}
		r.Topics++
		dropped, err := j.cleanTopic(ctx, t, keep)
		r.Done += dropped
		if err == nil {
			err = j.dropOrphans(ctx, t, &orphans)
		}
		if err != nil {
			r.failed(err)
			j.engine.Counters.JobsFailed.Add(1)
			j.engine.Logger.Error("subscriptions of a topic cannot be cleaned up, trying again", "topic", t.Name, "error", err)
		}
	}
}

// cleanTopic deletes the subscriptions of a topic that ended long ago and hold nothing.
func (j *Jobs) cleanTopic(ctx context.Context, t *storage.Topic, keep time.Duration) (dropped int64, err error) {
	over := func(sub *storage.Subscription) bool {
		keep := keep
		if sub.State == storage.Dead { // it may return, and is owed messages until then
			keep = max(keep, t.View().Config.GetDeadRetention().AsDuration())
		}
		return ended(sub) && j.engine.Clock().Sub(time.UnixMilli(sub.Row.LastActiveAt)) >= keep
	}
	reading := t.Reading() // Changing only if it must be: that waits for what is being published
	some := slices.ContainsFunc(t.Subscriptions(), over)
	reading.End()
	if !some {
		return 0, nil
	}
	l, err := j.engine.Topics.Open(ctx, t)
	if err != nil {
		return 0, err
	}
	defer l.Release()
	gone, err := j.Drop(ctx, l, func(sub *storage.Subscription) bool { return over(sub) && !holds(l, sub.Group) })
	for _, sub := range gone {
		what := "group " + sub.Group + ", " + storage.StateName(sub.State)
		err = errors.Join(err, j.record(ctx, "DropSubscription", t.Name, what))
	}
	return int64(len(gone)), err
}

// ended reports whether a subscription is cancelled or dead.
func ended(sub *storage.Subscription) bool {
	return sub.State == storage.Cancelled || sub.State == storage.Dead
}

// holds reports whether a group has members, or messages that it has not acknowledged.
func holds(l *serving.OpenTopic, group string) bool {
	if g := l.Group(group); g != nil && g.Members() > 0 {
		return true
	}
	for _, p := range l.Parts {
		some := false
		p.Do(func(m *machine.Machine) {
			if h := m.Group(group); h != nil {
				some = h.Stats().Pending > 0
			}
		})
		if some {
			return true
		}
	}
	return false
}

// Drop deletes subscriptions that are cancelled or dead, and returns them as they were: their
// acknowledged positions are stored as complete before their cursors are deleted, which are the
// only record of them until then. A dead subscription is cancelled first, so that no member
// revives it if the rest fails. The topic is not locked while the store is waited for; a
// subscription that is created again meanwhile stays.
func (j *Jobs) Drop(
	ctx context.Context, l *serving.OpenTopic, which func(*storage.Subscription) bool,
) (gone []*storage.Subscription, err error) {
	out, changed, err := j.takeOut(ctx, l, which)
	if err == nil && changed {
		wait, cancel := context.WithTimeout(ctx, store.CallTimeout) // a full disk takes no such row
		defer cancel()
		err = j.engine.Stored(wait, l, "")
	}
	if err != nil {
		return nil, err
	}
	defer l.Changing().End()
	for _, old := range out {
		sub := l.Subscription(old.Group)
		if sub == nil || sub.State != storage.Cancelled || sub.Row.Generation != old.Row.Generation {
			continue
		}
		if err := j.engine.Catalog.Drop(ctx, l.Topic, sub); err != nil {
			return gone, err
		}
		gone = append(gone, old)
	}
	return gone, nil
}

// takeOut takes groups out of the machines, and returns whether these have to be stored for
// it.
func (j *Jobs) takeOut(
	ctx context.Context, l *serving.OpenTopic, which func(*storage.Subscription) bool,
) (out []*storage.Subscription, changed bool, err error) {
	defer l.Changing().End()
	for _, sub := range l.Subscriptions() {
		if !which(sub) {
			continue
		}
		if sub.State == storage.Dead {
			end := *sub
			end.State = storage.Cancelled
			if err := j.engine.Catalog.Put(ctx, l.Topic, &end); err != nil {
				return nil, false, err
			}
		}
		if g := l.Group(sub.Group); g != nil {
			j.engine.EndGroup(l, g)
		}
		for _, p := range l.Parts {
			if err := p.Forget(sub.Group); err != nil {
				return nil, false, err
			}
		}
		out = append(out, sub)
	}
	for _, p := range l.Parts {
		changed = p.MarkState() || changed
	}
	return out, changed, nil
}

// dropOrphans deletes cursors of generations that a crash has left behind, at most left of
// them.
func (j *Jobs) dropOrphans(ctx context.Context, t *storage.Topic, left *int) (err error) {
	for n := range t.View().Config.GetPartitions() {
		err = errors.Join(err, j.dropOrphansOf(ctx, t, n, left))
	}
	return err
}

func (j *Jobs) dropOrphansOf(ctx context.Context, t *storage.Topic, n int32, left *int) error {
	var found []store.Key
	q := store.Query{
		Table: store.Subscriptions, PK: table.CursorPartition(int64(t.Number), n), Consistency: store.Strong,
	}
	defer t.Reading().End() // no subscription begins, whose cursors are stored before it is
	if t.View().Deleting {
		return nil
	}
	for row, err := range store.QueryAll(ctx, j.engine.Store, q) {
		if err != nil {
			return err
		}
		group, generation, ok := table.CursorOf(row.Key)
		if !ok || len(found) >= *left {
			continue
		}
		if sub := t.Subscription(group); sub == nil || sub.Row.Generation != generation {
			found = append(found, row.Key)
		}
	}
	*left -= len(found)
	for keys := range slices.Chunk(found, store.MaxBatchWrite) {
		writes := make([]store.Write, len(keys))
		for i, key := range keys {
			writes[i] = store.Write{Op: store.OpDelete, Key: key}
		}
		if err := j.engine.Store.BatchWrite(ctx, writes); err != nil {
			return err
		}
	}
	j.engine.Counters.Orphans.Add(int64(len(found)))
	return nil
}
