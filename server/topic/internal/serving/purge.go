package serving

import (
	"context"
	"slices"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// PurgePositions returns the positions before which a purge removes messages, by partition: those of the
// partitions that it names. None lies behind what is durable. Otherwise a crash could take messages off
// the end, and others, which the purge does not mean, would get their positions.
func (e *Engine) PurgePositions(
	ctx context.Context, l *OpenTopic, partitions []int32, before *topicv1.Position,
) (map[int32]int64, error) {
	if before.GetAt() == nil {
		return nil, refusal.New(refusal.InvalidArgument, "before must say where: earliest, latest, time or message_id")
	}
	for _, n := range partitions {
		if n < 0 || int(n) >= len(l.Parts) {
			return nil, refusal.New(refusal.PositionOutOfRange, "the topic's partitions are 0 to %d", len(l.Parts)-1)
		}
	}
	at, named := before.GetAt().(*topicv1.Position_MessageId)
	of := -1
	if named {
		var err error
		if of, _, err = l.Message(at.MessageId); err != nil {
			return nil, err
		}
		if len(partitions) > 0 && !slices.Equal(partitions, []int32{int32(of)}) {
			return nil, refusal.New(refusal.InvalidArgument,
				"message %s is in partition %d: name that partition, or none", at.MessageId, of)
		}
	}
	positions := map[int32]int64{}
	for n, p := range l.Parts {
		if named && n != of || len(partitions) > 0 && !slices.Contains(partitions, int32(n)) {
			continue
		}
		position, err := e.Subscriptions.Resolve(ctx, l, n, before)
		if err != nil {
			return nil, err
		}
		_, end, err := e.Sources.Reader(l.Topic).Bounds(ctx, p.Address)
		if err != nil {
			return nil, err
		}
		positions[int32(n)] = min(position, end)
	}
	return positions, nil
}

// PurgeForecast returns how many messages that are due to groups lie before positions, by group.
func (t *OpenTopic) PurgeForecast(before map[int32]int64) map[string]int64 {
	lost := map[string]int64{}
	for n, at := range before {
		t.Parts[n].Do(func(m *machine.Machine) {
			for _, g := range m.Groups() {
				if n := g.Due(at); n > 0 {
					lost[g.Config().Name] += n
				}
			}
		})
	}
	return lost
}

// Purge takes all groups off what lies before positions, and makes the partitions begin there. It returns
// how many messages groups lose, and notifies members that have some. The caller keeps the topic from
// changing: a group that begins between the two would begin below the start.
func (t *OpenTopic) Purge(before map[int32]int64) map[string]int64 {
	lost := map[string]int64{}
	groups := t.Groups()
	for n, at := range before {
		p := t.Parts[n]
		if start, _ := p.Bounds(); at <= start {
			continue
		}
		for _, g := range groups {
			_ = g.DoIn(int(n), func(h *machine.GroupState) error {
				if n := h.Purge(at); n > 0 {
					lost[g.Name()] += n
				}
				return nil
			})
		}
		p.Trimmed(at)
	}
	return lost
}

// finishPurge does in a topic that is being opened what Purge did in the process before this one, as far
// as that has not stored it. The log may still have the messages, and keeps them where they are a part of
// a batch.
func (s *TopicCache) finishPurge(ctx context.Context, l *OpenTopic) error {
	beyond := map[int32]storage.Removed{}
	for n, before := range l.Purged() {
		if int(n) < len(l.Parts) && l.Parts[n].purge(before) {
			continue
		}
		// The log was put back to an earlier copy. It gives the positions again, to messages that
		// the purge does not mean.
		beyond[n] = storage.Removed{Asked: before, Start: before}
	}
	if len(beyond) == 0 {
		return nil
	}
	return s.engine.Catalog.PurgeDone(ctx, l.Topic, beyond)
}

// purge is Purge of a partition without members. It reports whether the partition has come that far.
func (p *Partition) purge(before int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, end := p.machine.Bounds()
	to := min(before, end)
	for _, g := range p.machine.Groups() {
		g.Purge(to)
		p.markLocked(g)
	}
	p.machine.Trimmed(to)
	return before <= end
}
