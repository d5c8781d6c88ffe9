package serving

import (
	"context"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Draining ends sessions whose members are to attach again.
const Draining = "DRAINING"

// Update changes the settings of a subscription: in the store, under the condition that it is what
// this process knows, then in all partitions at once. Members attach again and get the new settings
// with that: the lease and the interval of heartbeats are theirs to keep. Their sessions end as if the
// server went down, because every client attaches again then; one of an earlier release would take
// a reason that it does not know for the end of the group. A change of max_in_flight alone ends no session.
func (m *SubscriptionManager) Update(
	ctx context.Context, l *OpenTopic, r *topicv1.UpdateSubscriptionRequest,
) (warnings []string, err error) {
	t := l.Topic
	defer t.Changing().End()
	old := t.Subscription(r.GetGroup())
	if old == nil {
		return nil, refusal.NoSubscription(t.Name, r.GetGroup())
	}
	g := l.Group(old.Group)
	if old.State == storage.Cancelled || g == nil {
		return nil, refusal.New(refusal.SubscriptionGone, "the subscription of %q has ended", old.Group)
	}
	if r.GetEtag() != "" && r.GetEtag() != storage.Etag(old.Row.Version) {
		return nil, refusal.New(refusal.TopicExists, "the subscription of %q was changed: its etag is not %.64q", old.Group,
			r.GetEtag())
	}
	next := *old
	next.Config, warnings, err = storage.UpdateSubscription(old.Config, r.GetConfig(), r.GetUpdateMask().GetPaths(),
		t.View().Preset)
	if err != nil || proto.Equal(next.Config, old.Config) {
		return warnings, err
	}
	c, err := config(&next, t.View().Config.GetPausePins())
	if err != nil {
		return nil, err
	}
	g.Heartbeats.Fill(&next.Row)
	if onlyQuota(old.Config, next.Config) { // members keep what they have
		if err := m.engine.Catalog.Put(ctx, t, &next); err != nil {
			return nil, err
		}
		g.quota.Set(int64(next.Config.GetMaxInFlight()))
		return warnings, nil
	}
	// While the group is held, no partition delivers: all change from the old settings to the new ones
	// together, and none delivers by settings that are not stored. Members cannot
	// attach meanwhile: the topic changes.
	defer g.Hold()()
	if err := m.engine.Catalog.Put(ctx, t, &next); err != nil {
		return nil, err
	}
	return warnings, g.configure(&next, c)
}

// onlyQuota reports whether settings differ in max_in_flight only.
func onlyQuota(was, will *topicv1.SubscriptionConfig) bool {
	will = proto.CloneOf(will)
	will.MaxInFlight = was.GetMaxInFlight()
	return proto.Equal(was, will)
}

// configure serves the group by other settings. The caller holds the topic's lock for writing, and
// holds the group.
func (g *Group) configure(sub *storage.Subscription, c machine.Config) error {
	for _, s := range g.Sessions() {
		s.End(Draining)
	}
	g.keyOrder.Store(c.KeyOrder)
	g.quota.Set(int64(sub.Config.GetMaxInFlight()))
	g.Heartbeats.Every(sub.Config.GetHeartbeatInterval().AsDuration())
	return g.Do(func(_ int, h *machine.GroupState) error {
		h.Configure(c)
		return nil
	})
}
