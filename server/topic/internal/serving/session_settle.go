package serving

import (
	"context"
	"slices"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// maxRefusals is the number of refusals in an answer.
const maxRefusals = 1000

// Ack acknowledges messages, and returns what was refused. It returns when the answer is
// due: where acknowledgements are durable, once they are stored.
func (s *Session) Ack(ctx context.Context, set *topicv1.AckSet) ([]*topicv1.Refusal, error) {
	if err := s.group.cfg.Flusher.Admit(); err != nil {
		return nil, err
	}
	defer s.group.cfg.Flusher.Done()
	g := s.group
	var all int64
	refusals, err := s.settle(set.GetPositions(), func(m polledMember, p machine.Positions, dst []refused) []refused {
		done, dst := m.Ack(p, dst)
		all += done
		return dst
	})
	if err != nil {
		return nil, err
	}
	if all > 0 {
		g.progress.Store(true)
	}
	if !g.cfg.Durable() {
		g.cfg.Flusher.Count(all)
		return refusals, nil
	}
	var unsaved []*Partition
	for _, p := range set.GetPositions() {
		part := g.cfg.Parts[p.GetPartition()]
		if !slices.Contains(unsaved, part) && part.Unsaved(g.cfg.Name) {
			unsaved = append(unsaved, part)
		}
	}
	if len(unsaved) > 0 {
		return refusals, g.cfg.Flusher.Wait(ctx, g.cfg.Name, unsaved...)
	}
	return refusals, nil
}

// Nack requeues messages.
func (s *Session) Nack(_ context.Context, set *topicv1.NackSet) ([]*topicv1.Refusal, error) {
	delay, now := time.Duration(-1), s.group.cfg.Clock()
	if set.GetDelay() != nil {
		delay = set.GetDelay().AsDuration()
	}
	refusals, err := s.settle(set.GetPositions(), func(m polledMember, p machine.Positions, dst []refused) []refused {
		return m.Nack(p, delay, set.GetReason(), now, dst)
	})
	if err != nil {
		return nil, err
	}
	s.rouse(set.GetPositions())
	for _, p := range set.GetPositions() {
		s.group.Wake(int(p.GetPartition()))
	}
	return refusals, nil
}

// Extend renews leases, all of the session's if none are named.
func (s *Session) Extend(_ context.Context, set *topicv1.ExtendSet) ([]*topicv1.Refusal, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	now := s.group.cfg.Clock()
	if len(set.GetPositions()) == 0 {
		for n, m := range s.members {
			s.group.do(n, func(*machine.GroupState) { m.ExtendAll(now) })
		}
		return nil, nil
	}
	refusals, err := s.settle(set.GetPositions(), func(m polledMember, p machine.Positions, dst []refused) []refused {
		return m.Extend(p, now, dst)
	})
	if err == nil {
		s.rouse(set.GetPositions())
	}
	return refusals, err
}

// rouse does what is due where positions are, passes dead letters on, and sets the timers for what
// is due next.
func (s *Session) rouse(positions []*topicv1.Positions) {
	for _, p := range positions {
		s.group.do(int(p.GetPartition()), func(*machine.GroupState) {})
	}
}

// Unpark delivers messages of keys again that are parked, see Partition.Unpark.
func (g *Group) Unpark(ctx context.Context, keys []string) (messages int64, err error) {
	for n, p := range g.cfg.Parts {
		some, err := p.Unpark(ctx, g.cfg.Name, keys)
		messages += int64(some)
		if err != nil {
			return messages, err
		}
		g.Wake(n)
	}
	return messages, nil
}

type (
	polledMember = *machine.Member
	refused      = machine.Refusal
)

// settle calls f for all positions, and returns what was refused.
func (s *Session) settle(
	positions []*topicv1.Positions,
	f func(m polledMember, p machine.Positions, dst []refused) []refused,
) ([]*topicv1.Refusal, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	g := s.group
	for _, p := range positions {
		if n := p.GetPartition(); n < 0 || int(n) >= len(s.members) {
			return nil, refusal.New(refusal.PositionOutOfRange, "the topic has %d partitions, not one with number %d",
				len(s.members), n)
		}
	}
	var answer []*topicv1.Refusal
	var list []refused
	for _, p := range positions {
		n := int(p.GetPartition())
		count := p.GetCount()
		if count == 0 && len(p.GetBitmap()) == 0 {
			count = 1
		}
		list = list[:0]
		g.cfg.Parts[n].Change(g.cfg.Name, func() {
			list = f(s.members[n], machine.Positions{Base: p.GetBase(), Count: count, Bitmap: p.GetBitmap()}, list)
		})
		for _, r := range list {
			if len(answer) < maxRefusals {
				answer = append(answer, &topicv1.Refusal{
					Positions: &topicv1.Positions{Partition: int32(n), Base: r.From, Count: r.To - r.From},
					Outcome:   topicv1.Outcome(r.Outcome),
				})
			}
		}
		if g.keyOrder.Load() {
			g.Wake(n)
		}
	}
	g.wakeBlocked()
	return answer, nil
}
