package serving

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

const interval = time.Minute

// group makes a group that has been silent since long ago.
func group(name string, began time.Time) *Group {
	g := NewGroup(GroupConfig{Name: name}, 0)
	c := &topicv1.SubscriptionConfig{HeartbeatInterval: durationpb.New(interval)}
	g.Heartbeats.Init(&storage.Subscription{Config: c}, began)
	return g
}

// tick stores the heartbeats that are due, and returns how many groups were checked.
func tick(t *OpenTopic, now time.Time) int {
	list := t.DueHeartbeats(now)
	for _, g := range list {
		if g.Heartbeats.Tick(now, g.Members() > 0, false) {
			var row table.Subscription
			g.Heartbeats.Fill(&row)
			g.Heartbeats.Stored(row.Heartbeats)
		}
	}
	if len(list) > 0 {
		t.HeartbeatsFlushed()
	}
	return len(list)
}

// Groups without heartbeats are not checked. A group with one is checked until the heartbeat is
// stored, which is within its interval.
func TestIdleGroupsAreNotChecked(t *testing.T) {
	began := time.Unix(1_000_000, 0)
	l := newOpenTopic(&storage.Topic{})
	var groups []*Group
	for n := range 10 {
		groups = append(groups, group(fmt.Sprint(n), began))
		l.Add(groups[n])
	}
	now := began.Add(time.Hour)
	if n := tick(l, now); n != 0 {
		t.Errorf("%d groups are looked at of which nobody was heard", n)
	}
	l.RecordHeartbeat(groups[3], now)
	for end := now.Add(interval); !now.After(end); now = now.Add(time.Second) {
		if n := tick(l, now); n > 1 {
			t.Errorf("%d groups are looked at, and one is heard of", n)
		}
	}
	if !groups[3].Heartbeats.Settled() || len(l.Busy()) != 0 {
		t.Error("the heartbeat is not stored within the interval")
	}
	l.RecordHeartbeat(groups[4], now)
	l.Remove("4")
	l.RecordHeartbeat(groups[4], now)
	l.RecordHeartbeat(groups[5], now)
	l.Add(group("5", began))
	if len(l.Busy()) != 0 {
		t.Error("groups that have ended are looked at")
	}
}

// Heartbeats of groups that are heard of together are not stored together.
func TestHeartbeatsAreSpread(t *testing.T) {
	began := time.Unix(1_000_000, 0)
	l := newOpenTopic(&storage.Topic{})
	now := began.Add(time.Hour)
	parts := map[time.Time]int{}
	for n := range 100 {
		g := group(fmt.Sprint(n), began)
		l.Add(g)
		l.RecordHeartbeat(g, now)
		parts[g.Heartbeats.Due().Truncate(interval/6)]++
	}
	if len(parts) < 5 {
		t.Errorf("they are due at %v", parts)
	}
	if limit := now.Add(interval); tick(l, limit) != 100 || len(l.Busy()) != 0 {
		t.Errorf("not all are due at %v", limit)
	}
}
