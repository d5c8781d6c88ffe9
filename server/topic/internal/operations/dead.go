package operations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// deadGroups returns the groups of a topic that are dead and owed something, and when they died.
func deadGroups(l *serving.OpenTopic) (dead map[*serving.Group]time.Time) {
	defer l.Reading().End()
	for _, sub := range l.Subscriptions() {
		g := l.Group(sub.Group)
		if sub.State != storage.Dead || g == nil {
			continue
		}
		owes := false
		each(l, sub.Group, func(_ *serving.Partition, _ *machine.Machine, h *machine.GroupState) { owes = owes || h.Owes() })
		if owes {
			if dead == nil {
				dead = map[*serving.Group]time.Time{}
			}
			dead[g] = time.UnixMilli(sub.Row.LastActiveAt)
		}
	}
	return dead
}

// letGo ends what a dead group is owed in a partition, and records it. A group that has returned
// meanwhile keeps what it has.
func (j *Jobs) letGo(
	ctx context.Context, l *serving.OpenTopic, g *serving.Group, n int, before int64, c machine.Cause, why string,
) error {
	var messages int64
	err := g.DoIn(n, func(h *machine.GroupState) error {
		messages = h.LetGo(before, c)
		return nil
	})
	if err != nil || messages == 0 {
		return err
	}
	j.engine.Logger.Warn("messages are no longer kept for a dead group", "topic", l.Name, "group", g.Name(),
		"partition", n, "messages", messages, "cause", c.String())
	return j.record(ctx, "ReleaseDead", l.Name,
		fmt.Sprintf("group %s, partition %d, %d messages, %s", g.Name(), n, messages, why))
}

// releaseExpired ends what groups are owed that have been dead for longer than the topic keeps
// messages for them.
func (j *Jobs) releaseExpired(ctx context.Context, l *serving.OpenTopic) (err error) {
	config := l.View().Config
	if storage.OfChats(config) { // Kafka says how long these are kept
		return nil
	}
	keep, now := config.GetDeadRetention().AsDuration(), j.engine.Clock()
	why := fmt.Sprintf("dead for longer than %s", keep)
	for g, died := range deadGroups(l) {
		if now.Sub(died) < keep {
			continue
		}
		for n := range l.Parts {
			err = errors.Join(err, j.letGo(ctx, l, g, n, machine.NoEnd, machine.ByDeath, why))
		}
	}
	return err
}

// held is what a partition has only because dead groups are owed it: positions from from to to.
type held struct {
	from, to int64
	marks    []mark // sizes
	bytes    int64
}

// before returns the position before which at least so many bytes lie.
func (h *held) before(bytes int64) int64 {
	for _, m := range h.marks {
		if bytes -= m.bytes; bytes <= 0 {
			return m.end
		}
	}
	return h.to
}

// releaseBeyondBytes ends what dead groups are owed beyond the bound in bytes, oldest first, and
// reports whether a trim has something to do. It follows a trim: the remaining messages are
// held.
func (j *Jobs) releaseBeyondBytes(ctx context.Context, l *serving.OpenTopic) (released bool, err error) {
	dead := deadGroups(l)
	if len(dead) == 0 || storage.OfChats(l.View().Config) {
		return false, nil
	}
	parts, all, err := j.heldForDead(ctx, l)
	if err != nil || !all {
		return false, err
	}
	excess, total, why, err := j.excess(ctx, l, parts)
	if err != nil || excess <= 0 {
		return false, err
	}
	for n := range parts {
		h := &parts[n]
		if h.from == h.to {
			continue
		}
		before := h.to
		if excess < total { // each partition by its share
			before = min(h.to, h.before(int64(float64(excess)/float64(total)*float64(h.bytes))))
		}
		for g := range dead {
			err = errors.Join(err, j.letGo(ctx, l, g, n, before, machine.ByBound, why))
		}
		released = true
	}
	return released, err
}

// heldForDead returns what each partition has for dead groups only, and whether any has some.
func (j *Jobs) heldForDead(ctx context.Context, l *serving.OpenTopic) (parts []held, some bool, err error) {
	parts = make([]held, len(l.Parts))
	for n, p := range l.Parts {
		cut, err := j.cutoffs(ctx, l, p)
		if err != nil {
			return nil, false, err
		}
		parts[n].from, parts[n].to, _ = j.limit(p, cut)
		some = some || parts[n].from < parts[n].to
	}
	return parts, some, nil
}

// excess returns how many bytes more are held for dead groups than may be, of total. A full topic, or
// a full disk, refuses publishes: there they go first, also those within the bound.
func (j *Jobs) excess(
	ctx context.Context, l *serving.OpenTopic, parts []held,
) (excess, total int64, why string, err error) {
	config := l.View().Config
	bound := config.GetDeadRetentionBytes()
	if j.engine.DiskShort() {
		return 1, 1, "the disk is nearly full", nil
	}
	if bound == 0 {
		return 1, 1, "the topic keeps none for dead groups", nil
	}
	size, err := j.engine.Log.Size(ctx, l.Number, int32(len(l.Parts)))
	if err != nil {
		return 0, 0, "", err
	}
	full := int64(0)
	if limit := l.MaxBytes(j.engine.MaxBytes); limit > 0 {
		full = size - limit/4*3
	}
	if size <= bound && full <= 0 {
		return 0, 0, "", nil
	}
	step := max(bound/maxMarks, leastMark)
	for n, p := range l.Parts {
		h := &parts[n]
		if h.marks, err = j.sizes.between(ctx, j.engine.Log, p.Address, h.from, h.to, step); err != nil {
			return 0, 0, "", err
		}
		for _, m := range h.marks {
			h.bytes += m.bytes
		}
		total += h.bytes
	}
	if excess = total - bound; excess >= full {
		return excess, total, fmt.Sprintf("more than %d bytes were kept for dead groups", bound), nil
	}
	return full, total, "the topic is nearly full", nil
}
