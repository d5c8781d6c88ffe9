package jobs

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/fence"
	"github.com/parley-chat/parley/server/topic/live"
)

// Times of heartbeats.
const (
	beatEvery   = time.Second // at which groups are looked at
	beatTimeout = 5 * time.Second
)

// runBeats counts members that are attached as heard from, and stores heartbeats, all that
// are due in one write. It has a goroutine and a timeout of its own: nothing that is slow
// elsewhere holds it up.
func (j *Jobs) runBeats(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		j.cfg.EndSilent()
		j.beatAll(ctx)
	}
}

type beatWrite struct {
	write store.Write
	pulse *live.Pulse
	beats int64
}

func (j *Jobs) beatAll(ctx context.Context) {
	now := j.cfg.Clock()
	var due []beatWrite
	for _, l := range j.cfg.All() {
		groups := l.Beating(now)
		for _, g := range groups {
			if !g.Pulse.Tick(now, g.Members() > 0, g.Progress()) {
				continue
			}
			var row table.Subscription
			g.Pulse.Record(&row)
			due = append(due, beatWrite{pulse: &g.Pulse, beats: row.Heartbeats, write: store.Write{
				Op: store.OpUpdate, Key: table.SubscriptionKey(l.Name, g.Name()), Name: strconv.Itoa(len(due)),
				Cond:   store.Exists().Eq(table.AttrGeneration, store.Int(g.Generation)),
				Update: store.Update{Set: row.Heartbeat()},
			}})
		}
		if len(groups) > 0 {
			l.Beaten()
		}
	}
	for len(due) > 0 {
		n := min(len(due), fence.MaxPlanWrites)
		j.writeBeats(ctx, due[:n])
		due = due[n:]
	}
}

// writeBeats stores heartbeats; those of groups that have ended meanwhile are left out.
// What fails is stored at the next interval.
func (j *Jobs) writeBeats(ctx context.Context, due []beatWrite) {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	for len(due) > 0 {
		plan := store.Plan{}
		for _, d := range due {
			plan.Writes = append(plan.Writes, d.write)
		}
		err := j.cfg.Store.Transact(ctx, plan)
		var failed *store.ConditionError
		if errors.As(err, &failed) {
			var rest []beatWrite
			for _, d := range due {
				if _, gone := failed.Failed(d.write.Name); !gone {
					rest = append(rest, d)
				}
			}
			due = rest
			continue
		}
		if err != nil {
			j.cfg.Counters.BeatsFailed.Add(int64(len(due)))
			j.cfg.Logger.Warn("heartbeats of subscriptions cannot be stored", "groups", len(due), "error", err)
			return
		}
		j.cfg.Counters.BeatWrites.Add(1)
		for _, d := range due {
			d.pulse.Wrote(d.beats)
		}
		return
	}
}
