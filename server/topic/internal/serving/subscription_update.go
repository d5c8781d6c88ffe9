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
// a reason that it does not know for the end of the group. A change of max_in_flight, or of the secret of a
// webhook, alone ends no session. secret is that of a webhook, if it was made.
func (m *SubscriptionManager) Update(
	ctx context.Context, l *OpenTopic, r *topicv1.UpdateSubscriptionRequest, by storage.PushedBy,
) (warnings []string, secret string, err error) {
	t := l.Topic
	defer t.Changing().End()
	old, g, err := updatable(l, r)
	if err != nil {
		return nil, "", err
	}
	next := *old
	next.Config, warnings, err = storage.UpdateSubscription(old.Config, r.GetConfig(), r.GetUpdateMask().GetPaths(),
		t.View().Preset)
	if err != nil {
		return nil, "", err
	}
	if storage.SetsPush(r.GetConfig(), r.GetUpdateMask().GetPaths()) {
		if next.Push = nil; next.Config.GetPush() != nil {
			next.Push, secret = storage.SetPush(old.Push, by, m.engine.Clock())
		}
	}
	if proto.Equal(next.Config, old.Config) && samePush(next.Push, old.Push) {
		return warnings, "", nil
	}
	c, err := config(&next, t.View().Config.GetPausePins())
	if err != nil {
		return nil, "", err
	}
	g.Heartbeats.Fill(&next.Row)
	if onlyQuota(old.Config, next.Config) && actsAs(old.Push, next.Push) { // members keep what they have
		if err := m.engine.Catalog.Put(ctx, t, &next); err != nil {
			return nil, "", err
		}
		g.quota.Set(int64(next.Config.GetMaxInFlight()))
		return warnings, secret, nil
	}
	// While the group is held, no partition delivers: all change from the old settings to the new ones
	// together, and none delivers by settings that are not stored. Members cannot
	// attach meanwhile: the topic changes.
	defer g.Hold()()
	if err := m.engine.Catalog.Put(ctx, t, &next); err != nil {
		return nil, "", err
	}
	return warnings, secret, g.configure(&next, c)
}

// updatable returns the subscription and the group of an update, if it can be changed. The caller holds the
// topic's lock for writing.
func updatable(l *OpenTopic, r *topicv1.UpdateSubscriptionRequest) (*storage.Subscription, *Group, error) {
	old := l.Topic.Subscription(r.GetGroup())
	if old == nil {
		return nil, nil, refusal.NoSubscription(l.Name, r.GetGroup())
	}
	g := l.Group(old.Group)
	if old.State == storage.Cancelled || g == nil {
		return nil, nil, refusal.New(refusal.SubscriptionGone, "the subscription of %q has ended", old.Group)
	}
	if r.GetEtag() != "" && r.GetEtag() != storage.Etag(old.Row.Version) {
		return nil, nil, refusal.New(refusal.TopicExists, "the subscription of %q was changed: its etag is not %.64q",
			old.Group, r.GetEtag())
	}
	return old, g, nil
}

// samePush reports whether two webhooks have the same beside their settings.
func samePush(a, b *storage.Push) bool { return a == b || a != nil && b != nil && *a == *b }

// actsAs reports whether the server pushes as the same principal with both.
func actsAs(a, b *storage.Push) bool {
	return a == b || a != nil && b != nil && a.Principal == b.Principal && a.Operator == b.Operator
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
