package gates

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/load/gates/rig"
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
	statuses    = 20  // messages of each partition that are checked, at the end
	partitions  = 4   // of the topic: a bound of the group holds over all of them
	leastMinute = 20  // part of the hold that a minute of the claim is, at least
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
	// The bounds of the partitions when the topic was new, when the group was killed, and before and after it was
	// revived.
	first, killed, revived, attached []*topicv1.PartitionBounds
}

// killAndRevive kills the one member of a group, and later begins it again.
func killAndRevive(ctx context.Context, b *bench) (verdict, error) {
	s := &story{bench: b, minute: scaled(b, max(3*time.Second, b.opt.Hold/leastMinute), time.Second),
		rate: scaled(b, 1000.0, 200.0)}
	var err error
	missed := int64(s.rate * (revivedAt - killedAt) * s.minute.Seconds())
	config := &topicv1.TopicConfig{Partitions: partitions}
	s.Load, err = rig.New(ctx, b.server, "orders", config, 3, &topicv1.SubscriptionConfig{
		HeartbeatInterval: durationpb.New(s.minute), HeartbeatTimeout: durationpb.New(deadTimeout * s.minute),
		MaxBackfillMessages: missed / missedShare,
	})
	if err != nil {
		return s.v, err
	}
	s.began, s.victim = time.Now(), s.Groups[0]
	for _, g := range s.Groups {
		g.Seen = &rig.Seen{}
	}
	if s.first, err = s.User.Partitions(ctx, s.Topic); err != nil {
		return s.v, err
	}
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
	if s.killed, err = s.User.Partitions(ctx, s.Topic); err != nil {
		return s.v, err
	}
	s.note("killed")
	stop, behind := watch(ctx, s.behind)
	if err = s.dead(ctx, killed, before); err == nil {
		err = s.revive(ctx)
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
	if err := s.finish(ctx); err != nil {
		return s.v, err
	}
	return s.v, s.arrived(ctx, missed/missedShare)
}

// arrived checks which messages came: all of them at the groups that lived, and at the revived one all that
// were published after it, and of those it missed as many as it may have.
func (s *story) arrived(ctx context.Context, limit int64) error {
	end, err := s.User.Partitions(ctx, s.Topic)
	if err != nil {
		return err
	}
	for _, g := range s.Groups[1:] {
		got, all := g.Seen.Between(s.first, end)
		s.v.broke(got < all, "%s has got %d of %d messages", g.Name, got, all)
	}
	got, all := s.victim.Seen.Between(s.revived, end)
	s.v.broke(got < all, "the revived group has got %d of %d new messages", got, all)
	got, all = s.victim.Seen.Between(s.killed, s.revived)
	_, meanwhile := s.victim.Seen.Between(s.revived, s.attached) // some of which may have counted as missed, too
	s.v.broke(got > limit || got < min(limit, all)-meanwhile,
		"%d of %d missed messages came, not %d", got, all, min(limit, all))
	s.v.result += fmt.Sprintf("; %d of %d missed messages came, and all others at each group", got, all)
	return nil
}

// behind is how far the groups are behind that live.
func (s *story) behind() (highest int64) {
	n := s.Published.Load()
	for _, g := range s.Groups[1:] {
		highest = max(highest, n-g.Delivered.Load())
	}
	return highest
}

// until waits for a minute of the claim, and reports whether the context has ended instead.
func (s *story) until(ctx context.Context, minute int) bool {
	return pause(ctx, time.Until(s.began.Add(time.Duration(minute)*s.minute)))
}

// pinned is how many messages are held for groups.
func (s *story) pinned(ctx context.Context) (int64, error) {
	b, err := s.User.Bounds(ctx, s.Topic)
	return b.End - b.Watermark, err
}

// dead waits until the group is, and checks what is held for groups from then on until it
// is time to revive it.
func (s *story) dead(ctx context.Context, killed time.Time, before int64) error {
	took := time.Duration(0)
	limit := deadWithin * s.minute
	for took == 0 && time.Since(killed) < 2*limit {
		sub, err := s.User.Subscription(ctx, s.Topic, s.victim.Name)
		if err != nil {
			return err
		}
		if sub.GetState() == topicv1.SubscriptionState_SUBSCRIPTION_STATE_DEAD {
			took = time.Since(killed)
		} else if pause(ctx, rig.PollEvery) {
			return ctx.Err()
		}
	}
	s.v.broke(took == 0 || took > limit, "dead after %v, not within %v", took, limit)
	s.v.result = fmt.Sprintf("dead %.1f s after the kill", took.Seconds())
	s.note("%s", s.v.result)
	held := int64(0)
	for time.Since(s.began) < revivedAt*s.minute {
		n, err := s.pinned(ctx)
		if err != nil {
			return err
		}
		held = max(held, n)
		if pause(ctx, 10*rig.PollEvery) {
			return ctx.Err()
		}
	}
	// Beside the growth there is what is under way: a second's messages.
	s.v.broke(float64(held) > pinGrowth*float64(before)+s.rate, "%d messages are held for the dead group", held)
	s.v.result += fmt.Sprintf("; at most %d messages held while it was, %d before", held, before)
	return nil
}

// revive begins the group again, which comes up with the others.
func (s *story) revive(ctx context.Context) (err error) {
	began := time.Now()
	if s.revived, err = s.User.Partitions(ctx, s.Topic); err != nil {
		return err
	}
	if err := s.Follow(ctx, s.victim); err != nil {
		return err
	}
	if s.attached, err = s.User.Partitions(ctx, s.Topic); err != nil {
		return err
	}
	took := time.Duration(0)
	for took == 0 && time.Since(began) < 2*doneWithin*s.minute {
		sub, err := s.User.Subscription(ctx, s.Topic, s.victim.Name)
		if err != nil {
			return err
		}
		if s.steady(sub) {
			took = time.Since(began)
		} else if pause(ctx, rig.PollEvery) {
			return ctx.Err()
		}
	}
	s.v.broke(took == 0 || took > doneWithin*s.minute, "revived after %v, not within %v", took, doneWithin*s.minute)
	s.note("revived in %v", took)
	s.v.result += fmt.Sprintf("; revived in %.1f s", took.Seconds())
	return nil
}

// steady reports whether the group has what was there when it was revived, and less than a second's messages to do.
func (s *story) steady(sub *topicv1.Subscription) bool {
	pending := int64(0)
	for i, p := range sub.GetPartitions() {
		if p.GetFloor() < s.revived[i].GetEnd() {
			return false
		}
		pending += p.GetPending()
	}
	return pending < int64(s.rate)
}

// finish checks whether nothing is left pending.
func (s *story) finish(ctx context.Context) error {
	var b rig.Bounds
	var err error
	for began := time.Now(); time.Since(began) < 10*time.Second; {
		if b, err = s.User.Bounds(ctx, s.Topic); err != nil || b.Watermark == b.End || pause(ctx, rig.PollEvery) {
			break
		}
	}
	if err != nil {
		return err
	}
	s.v.broke(b.Watermark != b.End, "%d messages stay pending", b.End-b.Watermark)
	list, err := s.User.Partitions(ctx, s.Topic)
	if err != nil {
		return err
	}
	for _, p := range list {
		for i := range int64(statuses) {
			at := p.GetStart() + (p.GetEnd()-1-p.GetStart())*i/(statuses-1)
			id := fmt.Sprintf("%d-%d", p.GetPartition(), at)
			res, err := s.User.Topics.GetMessageStatus(ctx, &topicv1.GetMessageStatusRequest{Topic: s.Topic, MessageId: id})
			if err != nil {
				return err
			}
			s.v.broke(res.GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED, "message %s is %v", id, res.GetStatus())
		}
	}
	return nil
}
