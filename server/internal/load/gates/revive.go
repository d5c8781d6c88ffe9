package gates

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/internal/load/gates/rig"
)

// The story of a group that is killed, in minutes of the claim. They pass faster here.
const (
	killedAt    = 5
	deadWithin  = 5
	revivedAt   = 20
	doneWithin  = 5
	steadyAt    = 30
	deadTimeout = 3
	missedShare = 9   // the revived group gets one part of so many of what it missed
	pinGrowth   = 1.1 // of what is held for groups, while one is dead
	statuses    = 20  // messages that are looked at, at the end
)

// story is the killing and revival of a group under way.
type story struct {
	*bench
	*rig.Load
	minute time.Duration
	rate   float64
	began  time.Time
	victim *rig.Group
	v      verdict
}

// killAndRevive kills the one member of a group, and later begins it again.
func killAndRevive(ctx context.Context, b *bench) (verdict, error) {
	s := &story{bench: b, minute: scaled(b, 3*time.Second, time.Second), rate: scaled(b, 1000.0, 200.0)}
	var err error
	missed := int64(s.rate * (revivedAt - killedAt) * s.minute.Seconds())
	s.Load, err = rig.New(ctx, b.server, "orders", &topicv1.TopicConfig{}, 3, &topicv1.SubscriptionConfig{
		HeartbeatInterval: durationpb.New(s.minute), HeartbeatTimeout: durationpb.New(deadTimeout * s.minute),
		MaxBackfillMessages: missed / missedShare,
	})
	if err != nil {
		return s.v, err
	}
	s.began, s.victim = time.Now(), s.Groups[0]
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait(); s.Load.Close() }()
	all.Go(func() { s.Pace(ctx, s.rate, steadyAt*s.minute) })
	if s.until(ctx, killedAt) {
		return s.v, ctx.Err()
	}
	before, err := s.pinned(ctx)
	if err != nil {
		return s.v, err
	}
	s.victim.User.Vanish()
	s.victim.End()
	killed := time.Now()
	s.note("killed")
	stop, behind := watch(ctx, s.behind)
	if err = s.dead(ctx, killed, before); err == nil {
		err = s.revive(ctx, missed)
	}
	stop()
	if err != nil {
		return s.v, err
	}
	s.v.broke(float64(behind()) > 2*s.rate, "the other groups were %d messages behind", behind())
	s.v.tried = fmt.Sprintf("%.0f/s, a minute of the claim in %v, at most %d of %d missed messages", s.rate, s.minute,
		missed/missedShare, missed)
	s.v.result += fmt.Sprintf("; the others at most %d messages behind", behind())
	s.v.limit = "–"
	all.Wait()
	return s.v, s.finish(ctx)
}

// behind is how far the groups are behind that live.
func (s *story) behind() (most int64) {
	n := s.Published.Load()
	for _, g := range s.Groups[1:] {
		most = max(most, n-g.Delivered.Load())
	}
	return most
}

// until waits for a minute of the claim, and reports whether the context has ended instead.
func (s *story) until(ctx context.Context, minute int) bool {
	return pause(ctx, time.Until(s.began.Add(time.Duration(minute)*s.minute)))
}

// pinned is how many messages are held for groups.
func (s *story) pinned(ctx context.Context) (int64, error) {
	b, err := s.User.Bounds(ctx, s.Topic)
	return b.GetEnd() - b.GetWatermark(), err
}

// dead waits until the group is, and looks at what is held for groups from then on until it
// is time to revive it.
func (s *story) dead(ctx context.Context, killed time.Time, before int64) error {
	took := time.Duration(0)
	most := deadWithin * s.minute
	for took == 0 && time.Since(killed) < 2*most {
		sub, err := s.User.Subscription(ctx, s.Topic, s.victim.Name)
		if err != nil {
			return err
		}
		if sub.GetState() == topicv1.SubscriptionState_SUBSCRIPTION_STATE_DEAD {
			took = time.Since(killed)
		} else if pause(ctx, rig.LookEvery) {
			return ctx.Err()
		}
	}
	s.v.broke(took == 0 || took > most, "dead after %v, not within %v", took, most)
	s.v.result = fmt.Sprintf("dead %.1f s after the kill", took.Seconds())
	s.note("%s", s.v.result)
	held := int64(0)
	for time.Since(s.began) < revivedAt*s.minute {
		n, err := s.pinned(ctx)
		if err != nil {
			return err
		}
		held = max(held, n)
		if pause(ctx, 10*rig.LookEvery) {
			return ctx.Err()
		}
	}
	// Beside the growth there is what is under way: a second's messages.
	s.v.broke(float64(held) > pinGrowth*float64(before)+s.rate, "%d messages are held for the dead group", held)
	s.v.result += fmt.Sprintf("; at most %d messages held while it was, %d before", held, before)
	return nil
}

// revive begins the group again, which gets some of what it missed, and comes up with the
// others.
func (s *story) revive(ctx context.Context, missed int64) error {
	had, began := s.victim.Delivered.Load(), time.Now()
	end, err := s.User.Bounds(ctx, s.Topic)
	if err != nil {
		return err
	}
	if err := s.Follow(ctx, s.victim); err != nil {
		return err
	}
	took := time.Duration(0)
	for took == 0 && time.Since(began) < 2*doneWithin*s.minute {
		sub, err := s.User.Subscription(ctx, s.Topic, s.victim.Name)
		if err != nil {
			return err
		}
		if p := sub.GetPartitions()[0]; p.GetFloor() >= end.GetEnd() && p.GetPending() < int64(s.rate) {
			took = time.Since(began)
		} else if pause(ctx, rig.LookEvery) {
			return ctx.Err()
		}
	}
	since, err := s.User.Bounds(ctx, s.Topic)
	if err != nil {
		return err
	}
	again := s.victim.Delivered.Load() - had - (since.GetEnd() - end.GetEnd()) // what is new is no backfill
	s.v.broke(took == 0 || took > doneWithin*s.minute, "revived after %v, not within %v", took, doneWithin*s.minute)
	s.v.broke(again > missed/missedShare, "%d of %d missed messages came", again, missed)
	s.note("revived in %v", took)
	s.v.result += fmt.Sprintf("; revived in %.1f s with %d of %d missed messages", took.Seconds(), max(0, again), missed)
	return nil
}

// finish looks whether nothing is left pending.
func (s *story) finish(ctx context.Context) error {
	var b *topicv1.PartitionBounds
	var err error
	for began := time.Now(); time.Since(began) < 10*time.Second; {
		if b, err = s.User.Bounds(ctx, s.Topic); err != nil || b.GetWatermark() == b.GetEnd() || pause(ctx, rig.LookEvery) {
			break
		}
	}
	if err != nil {
		return err
	}
	s.v.broke(b.GetWatermark() != b.GetEnd(), "%d messages stay pending", b.GetEnd()-b.GetWatermark())
	for i := range int64(statuses) {
		at := b.GetStart() + (b.GetEnd()-1-b.GetStart())*i/(statuses-1)
		res, err := s.User.Topics.GetMessageStatus(ctx, &topicv1.GetMessageStatusRequest{Topic: s.Topic,
			MessageId: fmt.Sprintf("0-%d", at)})
		if err != nil {
			return err
		}
		s.v.broke(res.GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED, "message %d is %v", at, res.GetStatus())
	}
	return nil
}
