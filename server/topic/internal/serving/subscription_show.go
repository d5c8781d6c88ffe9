package serving

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// ShowSubscription is what clients see of a subscription. The caller holds the topic's lock.
func ShowSubscription(l *OpenTopic, sub *storage.Subscription, positions bool) *topicv1.Subscription {
	row := sub.Row
	d := &topicv1.Subscription{
		Topic: l.Name, Group: sub.Group, State: sub.State, Config: sub.Config, Gap: row.Gap, Etag: storage.Etag(row.Version),
		Generation: row.Generation, SubscribedAt: timestamppb.New(time.UnixMilli(row.SubscribedAt)),
	}
	if g := l.Group(sub.Group); g != nil {
		g.Heartbeats.Fill(&row)
		d.Members, d.Stalls = int32(g.Members()), g.Stalls()
		if sub.Config.GetPush() != nil {
			d.PushStatus = g.Push.show(sub)
		}
	}
	d.LastActiveAt = timestamppb.New(time.UnixMilli(row.LastActiveAt))
	if row.HeartbeatAt > 0 {
		d.LastHeartbeatAt = timestamppb.New(time.UnixMilli(row.HeartbeatAt))
	}
	d.Flapping = storage.Flaps(row.Restarts)
	var released machine.Ledger
	for n, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			h := m.Group(sub.Group)
			if h == nil {
				return
			}
			st := h.Stats()
			_, end := m.Bounds()
			released.Add(h.Ledger())
			d.Processed, d.Filtered, d.Failed = d.Processed+st.Processed, d.Filtered+st.Filtered, d.Failed+st.Failed
			if positions {
				d.Partitions = append(d.Partitions, &topicv1.SubscriptionPartition{
					Partition: int32(n), Start: st.Start, Floor: st.Floor, End: end, Pending: st.Pending,
					InFlight: st.InFlight, Retrying: st.Retrying, Parked: st.Parked, Delayed: st.Delayed,
				})
			}
		})
	}
	d.Released = &topicv1.ReleasedMessages{
		Death: released[machine.ByDeath], Bound: released[machine.ByBound], Retention: released[machine.ByRetention],
		Zombie: released[machine.ByZombie], Forced: released[machine.ByForce], Sought: released[machine.BySeek],
		Expired: released[machine.ByExpiry],
	}
	d.Gap = d.GetGap() || released.Unasked() > 0
	return d
}
