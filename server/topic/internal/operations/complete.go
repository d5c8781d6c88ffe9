package operations

import (
	"context"
	"fmt"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// ForceComplete completes old messages that wait for no living group and, with force,
// passes living groups over them. It may be repeated.
func (a *Admin) ForceComplete(
	ctx context.Context, by string, r *topicv1.ForceCompleteRequest,
) (*topicv1.ForceCompleteResponse, error) {
	l, err := a.open(ctx, r.GetTopic())
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if err := a.mayComplete(l, r); err != nil {
		return nil, err
	}
	c := completion{r: r, before: make([]int64, len(l.Parts)), answer: &topicv1.ForceCompleteResponse{}}
	at := a.engine.Clock().Add(-r.GetOlderThan().AsDuration())
	for n, p := range l.Parts {
		if c.before[n], err = a.engine.Sources.Reader(l.Topic).PositionAt(ctx, p.Address, at); err != nil {
			return nil, err
		}
	}
	if r.GetDryRun() {
		return c.answer, c.all(l)
	}
	err = a.audited(ctx, by, "ForceComplete", r, func() (string, error) {
		if err := c.all(l); err != nil {
			return "", err
		}
		d := c.answer
		return fmt.Sprintf("%d orphaned, %d released, %d skipped", d.GetOrphaned(), d.GetReleased(), d.GetSkipped()),
			a.engine.Stored(ctx, l, r.GetGroup())
	})
	if err != nil {
		return nil, err
	}
	return c.answer, nil
}

// mayComplete refuses what would be done to a group that is named, and lives.
func (a *Admin) mayComplete(l *serving.OpenTopic, r *topicv1.ForceCompleteRequest) error {
	if r.GetGroup() == "" {
		return nil
	}
	sub, err := subscribed(l, r.GetGroup())
	if err != nil {
		return err
	}
	if storage.Receives(sub.State) && !r.GetForce() {
		return refusal.New(refusal.InvalidTransition, "group %q is %s: only with force it does not get its messages",
			sub.Group, storage.StateName(sub.State))
	}
	return nil
}

// completion is one ForceComplete.
type completion struct {
	r      *topicv1.ForceCompleteRequest
	before []int64 // positions below, by partition
	answer *topicv1.ForceCompleteResponse
}

// all does it in all partitions. Subscriptions do not change meanwhile.
func (c *completion) all(l *serving.OpenTopic) error {
	defer l.Reading().End()
	for _, sub := range l.Subscriptions() {
		if c.r.GetGroup() != "" && c.r.GetGroup() != sub.Group {
			continue
		}
		switch {
		case !storage.Receives(sub.State):
			if err := c.release(l, sub.Group); err != nil {
				return err
			}
			if c.r.GetForce() {
				c.letGo(l, sub.Group)
			}
		case c.r.GetForce():
			if err := c.skip(l, sub.Group); err != nil {
				return err
			}
		}
	}
	if c.r.GetGroup() != "" {
		return nil
	}
	for n, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			if c.r.GetDryRun() {
				set := m.Orphans(c.before[n])
				c.answer.Orphaned += set.Count(0, c.before[n])
			} else {
				c.answer.Orphaned += m.CompleteOrphans(c.before[n])
			}
		})
		p.MarkState()
	}
	return nil
}

// release releases the messages of any age that a group that has ended still holds.
// Normally it holds none.
func (c *completion) release(l *serving.OpenTopic, group string) (err error) {
	for _, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			g := m.Group(group)
			if g == nil {
				return
			}
			n := g.Stats().Pending
			if !c.r.GetDryRun() {
				n, err = g.Release()
			}
			c.answer.Released += n
		})
		if err != nil {
			return err
		}
		p.Mark(group)
	}
	return nil
}

// letGo ends what a dead group is owed of what is old.
func (c *completion) letGo(l *serving.OpenTopic, group string) {
	for n, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			g := m.Group(group)
			if g == nil {
				return
			}
			if c.r.GetDryRun() {
				owed := g.Owed()
				c.answer.Skipped += owed.Count(0, c.before[n])
			} else {
				c.answer.Skipped += g.LetGo(c.before[n], machine.ByForce)
			}
		})
		p.Mark(group)
	}
}

// skip takes a living group off what is old, and notifies its members.
func (c *completion) skip(l *serving.OpenTopic, group string) error {
	g := l.Group(group)
	if g == nil {
		return nil
	}
	for n := range l.Parts {
		err := g.DoIn(n, func(h *machine.GroupState) error {
			if c.r.GetDryRun() {
				missing := h.Missing()
				c.answer.Skipped += missing.Count(0, c.before[n])
			} else {
				c.answer.Skipped += h.Skip(c.before[n], machine.ByForce)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
