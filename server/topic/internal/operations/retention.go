package operations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

const (
	checkEvery = time.Minute // at whether something is due, at most
	openEach   = 100         // topics that a batch opens
)

// runRetention trims what need not be kept any more, and cleans subscriptions up.
func (j *Jobs) runRetention(ctx context.Context) {
	begin := time.Now()
	j.due(Trim, j.schedule().Trim)
	clean := nextClean(j.engine.Clock())
	j.tasks[Subscriptions].set(clean)
	for {
		every := j.schedule().Trim
		if wait.For(ctx, min(checkEvery, every)) != nil {
			return
		}
		j.rate.observe(time.Now(), j.engine.Counters.Published.Load())
		j.finishRemovals(ctx)
		j.finishPurges(ctx)
		j.follow(ctx)
		trusted := j.trusts()
		if trusted {
			j.lapseAll(ctx)
		}
		if time.Since(begin) >= every || j.crowded() {
			begin = time.Now()
			j.due(Trim, every)
			j.do(ctx, Trim, trusted)
		}
		if now := j.engine.Clock(); !now.Before(clean) {
			j.do(ctx, Subscriptions, trusted)
			clean = nextClean(now)
			j.tasks[Subscriptions].set(clean)
		}
		j.reclaim(ctx)
	}
}

// reclaim gives the space of what was removed back to the disk, also of topics: a disk that is short
// does not wait for the next trim.
func (j *Jobs) reclaim(ctx context.Context) {
	if err := j.engine.Reclaim(ctx); err != nil && ctx.Err() == nil {
		j.engine.Counters.JobsFailed.Add(1)
		j.engine.Logger.Error("space of removed messages cannot be given back, trying again", "error", err)
	}
}

// crowded reports whether publishes are refused because a topic, or the disk, is full: a trim does
// not wait for its time then, because messages kept for dead groups are removed first.
func (j *Jobs) crowded() bool {
	full := j.engine.DiskShort()
	for _, l := range j.engine.Topics.All() {
		full = l.TakeRefused() || full
	}
	return full
}

// due notes when a task runs next.
func (j *Jobs) due(k JobKind, in time.Duration) { j.tasks[k].set(j.engine.Clock().Add(in)) }

// trusts reports whether the wall clock is to be believed.
func (j *Jobs) trusts() bool {
	ok, jumped := j.clockGuard.trusted()
	if jumped {
		j.engine.Logger.Error(distrust, "now", j.engine.Clock())
	}
	return ok
}

// follow loads the new events of the topics of chats that are in use, also of those that no
// group consumes.
func (j *Jobs) follow(ctx context.Context) {
	j.each(func(l *serving.OpenTopic) {
		if err := j.engine.Sources.Follow(ctx, l); err != nil {
			j.engine.Counters.JobsFailed.Add(1)
			j.engine.Logger.Error("events of chats cannot be followed, trying again", "topic", l.Name, "error", err)
		}
	})
}

// each calls f with the topics in use, each of which stays open meanwhile.
func (j *Jobs) each(f func(*serving.OpenTopic)) {
	for _, l := range j.engine.Topics.All() {
		if l = j.engine.Topics.Hold(l.Number); l != nil {
			f(l)
			l.Release()
		}
	}
}

// finishRemovals continues with the topics whose removal failed.
func (j *Jobs) finishRemovals(ctx context.Context) {
	deleting := func(t *storage.Topic) bool { return t.View().Deleting }
	for _, t := range j.engine.Catalog.Topics("", j.engine.Catalog.Count(), deleting) {
		if err := j.engine.FinishRemoval(ctx, t); err != nil {
			j.engine.Counters.JobsFailed.Add(1)
			j.engine.Logger.Error("a topic cannot be removed, trying again", "topic", t.Name, "error", err)
		}
	}
}

func (j *Jobs) topics() []*storage.Topic {
	return j.engine.Catalog.Topics("", j.engine.Catalog.Count(), func(t *storage.Topic) bool { return !t.View().Deleting })
}

// batch is what a trim does before it checks whether it has to stop.
type batch struct {
	open     int   // topics that it may still open
	messages int64 // that it may still remove
}

// full reports whether the batch has done enough.
func (b *batch) full() bool { return b.open <= 0 || b.messages <= 0 }

// trimAll trims all topics, in batches: after one that is full the next one follows at once.
// A trim that fails is tried again in the next run.
func (j *Jobs) trimAll(ctx context.Context, r *run) {
	s := j.schedule()
	b := batch{openEach, s.Batch}
	j.unstored = false
	var backlog int64
	for _, t := range j.topics() {
		if b.full() {
			_ = wait.For(ctx, s.Pause) // it is looked below whether to stop
			b = batch{openEach, s.Batch}
		}
		if r.over() {
			return
		}
		r.Topics++
		kept, err := j.retainTopic(ctx, t, &b, r)
		backlog += kept
		if err != nil {
			r.failed(err)
			j.engine.Counters.JobsFailed.Add(1)
			j.engine.Logger.Error("a topic cannot be trimmed, trying again", "topic", t.Name, "error", err)
		}
	}
	if backlog > j.backlog {
		j.engine.Counters.TrimBehind.Add(1)
	} else {
		j.engine.Counters.TrimBehind.Store(0)
	}
	j.backlog = backlog
	j.reclaim(ctx)
	j.engine.Counters.TrimBacklog.Store(backlog)
	j.ages.forget()
	j.sizes.forget()
}

// retainTopic checks a topic, and returns how many of its messages are older than their
// retention and still there. One that is not in use is opened only if it has something that
// may have to go.
func (j *Jobs) retainTopic(ctx context.Context, t *storage.Topic, b *batch, r *run) (kept int64, err error) {
	l := j.engine.Topics.Hold(t.Number)
	if l == nil {
		if aged, err := j.aged(ctx, t); !aged {
			return 0, err
		}
		b.open--
		if l, err = j.engine.Topics.Open(ctx, t); err != nil {
			return 0, err
		}
	}
	defer l.Release()
	reads := lapseReads
	err = errors.Join(j.engine.Sources.Follow(ctx, l), j.lapse(ctx, l, &reads), j.releaseExpired(ctx, l))
	kept, failed := j.retainAll(ctx, l, b, r)
	released, also := j.releaseBeyondBytes(ctx, l)
	if err = errors.Join(err, failed, also); released {
		kept, failed = j.retainAll(ctx, l, b, r)
	}
	return kept, errors.Join(err, failed)
}

// retainAll checks the partitions of a topic.
func (j *Jobs) retainAll(ctx context.Context, l *serving.OpenTopic, b *batch, r *run) (kept int64, err error) {
	age := shortest(l.View().Config)
	for n, p := range l.Parts {
		start, end := p.Bounds()
		if start == end || j.ages.young(ctx, j.engine.Sources.Reader(l.Topic), p.Address, start, j.engine.Clock(), age) {
			p.Idle()
			continue
		}
		// A failure in one partition, or for one purpose, stops no other.
		removed, left, failed := j.retain(ctx, l, n)
		err = errors.Join(err, failed)
		b.messages -= removed
		r.Done += removed
		kept += left
		l.Parts[n].Idle()
	}
	return kept, err
}

// aged reports whether a topic has messages older than the shortest of its times.
func (j *Jobs) aged(ctx context.Context, t *storage.Topic) (bool, error) {
	config := t.View().Config
	if storage.OfChats(config) { // of those there are few, and others trim them
		return true, nil
	}
	for n := range config.GetPartitions() {
		p := commitlog.Partition{Topic: t.Number, Number: n}
		start, end, err := j.engine.Log.Bounds(ctx, p)
		if err != nil {
			return false, err
		}
		if start < end && !j.ages.young(ctx, j.engine.Log, p, start, j.engine.Clock(), shortest(config)) {
			return true, nil
		}
	}
	return false, nil
}

// releaseZombies moves groups on whose position has not moved for so long that they no
// longer hold what is older.
func (j *Jobs) releaseZombies(ctx context.Context, l *serving.OpenTopic, n int) error {
	ttl := l.View().Config.GetZombieSubscriptionTtl().AsDuration()
	now := j.engine.Clock()
	for _, g := range l.Groups() {
		since, ok := l.Parts[n].Stuck(g.Name())
		if !ok || now.Sub(since) < ttl || g.Name() == storage.QueueGroup {
			continue
		}
		to, err := j.engine.Sources.Reader(l.Topic).PositionAt(ctx, l.Parts[n].Address, now.Add(-ttl))
		if err != nil {
			return err
		}
		var from, skipped int64
		err = g.DoIn(n, func(h *machine.GroupState) error {
			from = h.Floor()
			skipped = h.Skip(to, machine.ByZombie)
			return nil
		})
		if err != nil {
			return err
		}
		if skipped == 0 {
			continue
		}
		j.engine.Counters.Zombies.Add(1)
		what := fmt.Sprintf("group %s, partition %d, positions %d to %d, %d messages", g.Name(), n, from, to-1, skipped)
		if err := j.record(ctx, "ReleaseZombie", l.Name, what); err != nil {
			return err
		}
	}
	return nil
}

// retain moves zombies on, and trims what is not trimmed by others.
func (j *Jobs) retain(ctx context.Context, l *serving.OpenTopic, n int) (removed, kept int64, err error) {
	failed := j.releaseZombies(ctx, l, n)
	if !storage.OfChats(l.View().Config) {
		removed, kept, err = j.trim(ctx, l, n)
	}
	return removed, kept, errors.Join(failed, err)
}

// trim removes the messages that no group is to receive and no retention keeps. It first
// stores the limit of the removal, and checks the limit again while no subscription can
// start. A subscription that starts after that sees that the messages are gone. kept is how
// many messages are older than their retention and stay.
func (j *Jobs) trim(ctx context.Context, l *serving.OpenTopic, n int) (removed, kept int64, err error) {
	p, t := l.Parts[n], l.Topic
	cut, err := j.cutoffs(ctx, l, p)
	if err != nil {
		return 0, 0, err
	}
	limit, living, watermark := j.limit(p, cut)
	defer func() {
		start, _ := p.Bounds()
		kept = max(0, cut.Complete-max(start, living)) // messages kept for dead groups have a bound of their own
	}()
	start, _ := p.Bounds()
	if living < cut.Complete {
		j.engine.Counters.TrimsSkipped.Add(1)
	}
	if limit <= start {
		return 0, 0, nil
	}
	intent := table.TopicTrim{Before: limit, At: j.engine.Clock().UnixMilli()}
	err = j.engine.Store.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpPut, Key: table.TopicTrimKey(t.Name, int32(n)), Item: intent.Item(), Name: "trim", Frees: true,
	}}})
	if err != nil {
		return 0, 0, err
	}
	j.store(ctx, l, p)
	defer t.Reading().End()
	if t.View().Deleting {
		return 0, 0, nil
	}
	limit, begin, err := j.remove(ctx, l, n, cut, limit)
	if err != nil {
		return 0, 0, err
	}
	if removed = begin - start; removed <= 0 {
		return 0, 0, nil // no batch lies before the limit as a whole, or the log begins with a batch that is purged in part
	}
	j.engine.Counters.Trimmed.Add(removed)
	err = j.trimmed(ctx, l, n, start, begin, watermark)
	done := map[int32]storage.Removed{int32(n): {Asked: limit, Start: begin}}
	return removed, 0, errors.Join(err, j.engine.Catalog.PurgeDone(ctx, t, done))
}

// remove removes what lies before a limit, which is checked once more. From that check on until it is gone,
// groups that read in order of key get nothing of it. It returns the limit that was in force, and where the
// partition begins then.
func (j *Jobs) remove(
	ctx context.Context, l *serving.OpenTopic, n int, cut machine.Cutoffs, most int64,
) (limit, begin int64, err error) {
	p := l.Parts[n]
	start, _ := p.Bounds()
	p.Do(func(m *machine.Machine) {
		limit, _ = m.TrimLimits(cut)
		limit = min(limit, most)
		m.Trimming(limit)
	})
	defer func() {
		p.Do(func(m *machine.Machine) { m.Trimming(0) })
		l.Wake(n)
	}()
	if limit <= start {
		return limit, start, nil
	}
	begin, err = j.engine.Log.Trim(ctx, p.Address, limit)
	p.Trimmed(begin) // also after an error: a log may have moved its start before it failed
	return limit, begin, err
}

// trimmed leaves a row of what was removed.
func (j *Jobs) trimmed(ctx context.Context, l *serving.OpenTopic, n int, start, begin, watermark int64) error {
	if begin > watermark {
		j.engine.Logger.Warn("messages were removed that not all groups have acknowledged", "topic", l.Name,
			"partition", n, "from", watermark, "to", begin-1)
	}
	return j.record(ctx, "Trim", l.Name, fmt.Sprintf("partition %d, positions %d to %d, %d messages, watermark %d",
		n, start, begin-1, begin-start, watermark))
}

// store stores what groups have acknowledged, and why messages were taken from them, before the
// messages are removed. After a crash between the two the ledger would count messages as removed that
// a group had acknowledged, or under another cause. A full disk may not take the rows: messages are
// removed all the same.
func (j *Jobs) store(ctx context.Context, l *serving.OpenTopic, p *serving.Partition) {
	if j.unstored || !p.Unsaved("") {
		return
	}
	wait, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	if err := j.engine.Flusher.Wait(wait, "", p); err != nil {
		j.unstored = true
		j.engine.Logger.Warn("positions of groups cannot be stored before messages are removed", "topic", l.Name, "error", err)
	}
}

// limit returns the position before which a partition may be trimmed, and which that would be if
// nothing were owed to dead groups.
func (j *Jobs) limit(p *serving.Partition, cut machine.Cutoffs) (limit, living, watermark int64) {
	p.Do(func(m *machine.Machine) {
		limit, living = m.TrimLimits(cut)
		watermark = m.Watermark()
	})
	return limit, living, watermark
}

// cutoffs are the positions before which a topic's retentions have ended.
func (j *Jobs) cutoffs(ctx context.Context, l *serving.OpenTopic, p *serving.Partition) (c machine.Cutoffs, err error) {
	config, now := l.View().Config, j.engine.Clock()
	for _, x := range []struct {
		to  *int64
		age time.Duration
	}{
		{&c.Complete, config.GetMessageRetention().AsDuration()},
		{&c.Unrequired, config.GetZeroSubscriptionRetention().AsDuration()},
		{&c.Forced, config.GetMaxRetention().AsDuration()},
	} {
		if *x.to, err = j.engine.Log.PositionAt(ctx, p.Address, now.Add(-x.age)); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Actor is whose the rows are that jobs leave.
const Actor = "server"

// record leaves a row of what a job did.
func (j *Jobs) record(ctx context.Context, call, topic, what string) error {
	end, err := j.cfg.Audit(ctx, Actor, call, topic)
	if err != nil {
		return err
	}
	end("ok", what)
	return nil
}
