package operations

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// Times of heartbeats.
const (
	heartbeatsEvery   = time.Second // at which groups are checked
	heartbeatsTimeout = 5 * time.Second
)

// runHeartbeats counts members that are attached as heard from, and stores heartbeats, all that
// are due in one write. It has a goroutine and a timeout of its own: nothing that is slow
// elsewhere holds it up.
func (j *Jobs) runHeartbeats(ctx context.Context) {
	wait.Every(ctx, heartbeatsEvery, func() {
		j.cfg.EndSilent()
		j.flushHeartbeats(ctx)
	})
}

type heartbeatWrite struct {
	write      store.Write
	heartbeats *serving.Heartbeats
	count      int64
}

func (j *Jobs) flushHeartbeats(ctx context.Context) {
	now := j.engine.Clock()
	var due []heartbeatWrite
	for _, l := range j.engine.Topics.All() {
		groups := l.DueHeartbeats(now)
		for _, g := range groups {
			if !g.Heartbeats.Tick(now, g.Members() > 0, g.Progress()) {
				continue
			}
			var row table.Subscription
			g.Heartbeats.Fill(&row)
			due = append(due, heartbeatWrite{heartbeats: &g.Heartbeats, count: row.Heartbeats, write: store.Write{
				Op: store.OpUpdate, Key: table.SubscriptionKey(l.Name, g.Name()), Name: strconv.Itoa(len(due)),
				Cond:   store.Exists().Eq(table.AttrGeneration, store.Int(g.Generation)),
				Update: store.Update{Set: row.Heartbeat()},
			}})
		}
		if len(groups) > 0 {
			l.HeartbeatsFlushed()
		}
	}
	for len(due) > 0 {
		n := min(len(due), storage.MaxPlanWrites)
		j.writeHeartbeats(ctx, due[:n])
		due = due[n:]
	}
}

// writeHeartbeats stores heartbeats; those of groups that have ended meanwhile are left out.
// A heartbeat that cannot be stored is stored at the next interval.
func (j *Jobs) writeHeartbeats(ctx context.Context, due []heartbeatWrite) {
	ctx, cancel := context.WithTimeout(ctx, heartbeatsTimeout)
	defer cancel()
	for len(due) > 0 {
		plan := store.Plan{}
		for _, d := range due {
			plan.Writes = append(plan.Writes, d.write)
		}
		err := j.engine.Store.Transact(ctx, plan)
		var failed *store.ConditionError
		if errors.As(err, &failed) {
			var rest []heartbeatWrite
			for _, d := range due {
				if _, gone := failed.Failed(d.write.Name); !gone {
					rest = append(rest, d)
				}
			}
			due = rest
			continue
		}
		if err != nil {
			j.engine.Counters.HeartbeatsFailed.Add(int64(len(due)))
			j.engine.Logger.Warn("heartbeats of subscriptions cannot be stored", "groups", len(due), "error", err)
			return
		}
		j.engine.Counters.HeartbeatWrites.Add(1)
		for _, d := range due {
			d.heartbeats.Stored(d.count)
		}
		return
	}
}
