package operations

import (
	"context"
	"strconv"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

const (
	cyclePause = time.Second // between cycles of detection, at least
	nearLogged = 10          // groups near their timeout that a cycle names
)

// runDetection looks for groups that have fallen silent. However often it is asked to look,
// it does so once a second at most: a cycle passes over all topics.
func (j *Jobs) runDetection(ctx context.Context) {
	for {
		j.do(ctx, Detection, true) // if an operator has it run, that is as good
		every := time.Duration(j.every.Load())
		j.due(Detection, every)
		if wait.For(ctx, min(every, cyclePause)) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every - min(every, cyclePause)):
		case <-j.wake:
		}
	}
}

type watched struct {
	topic *storage.Topic
	group string
}

// silenceSnapshot is what a cycle of detection sees.
type silenceSnapshot struct {
	groups []storage.Silence
	where  map[string]watched
	revive []watched // are dead and have members
	every  time.Duration
}

// detectAll runs one cycle.
func (j *Jobs) detectAll(ctx context.Context, r *run) {
	s := silenceSnapshot{where: map[string]watched{}, every: j.schedule().Detection}
	for _, t := range j.engine.Catalog.Topics("", j.engine.Catalog.Count(), func(*storage.Topic) bool { return true }) {
		r.Topics++
		j.collect(t, &s)
	}
	j.every.Store(int64(s.every))
	j.evaluate(ctx, s, r)
	for _, w := range s.revive {
		err := j.move(ctx, w, storage.Heartbeat, "members", "a group with members cannot be revived, trying again")
		if err != nil {
			r.failed(err)
		}
	}
}

// collect adds the groups of a topic.
func (j *Jobs) collect(t *storage.Topic, s *silenceSnapshot) {
	l := j.engine.Topics.Opened(t.Number)
	defer t.Reading().End()
	for _, sub := range t.Subscriptions() {
		if sub.Group == storage.QueueGroup {
			continue
		}
		var lg *serving.Group
		if l != nil {
			lg = l.Group(sub.Group)
		}
		members := lg != nil && lg.Members() > 0
		if sub.State == storage.Dead && members {
			s.revive = append(s.revive, watched{t, sub.Group})
		}
		if sub.State != storage.Active {
			continue
		}
		g := storage.Silence{
			Key:     t.Name + "/" + sub.Group + "/" + strconv.FormatInt(sub.Row.Generation, 10),
			Timeout: sub.Config.GetHeartbeatTimeout().AsDuration(), Heartbeats: sub.Row.Heartbeats, Members: members,
		}
		s.every = min(s.every, storage.DetectEvery(g.Timeout))
		if lg != nil {
			g.Heartbeats = lg.Heartbeats.Count()
		}
		s.groups = append(s.groups, g)
		s.where[g.Key] = watched{t, sub.Group}
	}
}

// evaluate marks groups that have been silent for too long. After a pause of the whole
// process no group's silence counts, because heartbeats may be waiting where they arrive.
func (j *Jobs) evaluate(ctx context.Context, s silenceSnapshot, r *run) {
	now := j.engine.Clock()
	late := !j.nextCycle.IsZero() && now.Sub(j.nextCycle) > s.every
	j.nextCycle = now.Add(s.every)
	if failed := j.engine.Counters.HeartbeatsFailed.Load(); late || failed != j.heartbeatsFailed {
		j.heartbeatsFailed = failed
		j.detector.Blind(now)
	}
	v := j.detector.Cycle(now, s.groups)
	j.engine.Counters.NearTimeout.Store(int64(len(v.Near)))
	for _, key := range v.Near[:min(len(v.Near), nearLogged)] { // the metric has all of them
		j.engine.Logger.Warn("group is silent for four fifths of its timeout", "topic", s.where[key].topic.Name,
			"group", s.where[key].group)
	}
	if v.Braked {
		r.Problem = "so many groups fall silent at once that none is marked dead"
		j.engine.Counters.Braked.Add(1)
		j.engine.Logger.Error(r.Problem, "active", len(s.groups))
	}
	for _, key := range v.Expired {
		if r.over() {
			return
		}
		err := j.move(ctx, s.where[key], storage.Expire, "heartbeat timeout",
			"a dead group cannot be marked, trying again")
		if err != nil {
			r.failed(err)
		} else {
			r.Done++
		}
	}
}

// move makes a transition of a group. One that is refused is none: its state has changed
// meanwhile.
func (j *Jobs) move(
	ctx context.Context, w watched, tr storage.Transition, by, failed string,
) error {
	l, err := j.engine.Topics.Open(ctx, w.topic)
	if err == nil {
		_, err = j.engine.Subscriptions.Transition(ctx, l, w.group, tr, by)
		l.Release()
	}
	if _, late := refusal.Of(err); err == nil || late {
		return nil
	}
	j.engine.Counters.DetectionFailed.Add(1)
	j.engine.Logger.Error(failed, "topic", w.topic.Name, "group", w.group, "error", err)
	return err
}
