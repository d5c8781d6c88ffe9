package topic

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
)

// calls counts what is asked of the store and the log, but for the bounds of a partition,
// which the log knows.
type calls struct{ reads, writes atomic.Int64 }

type countedStore struct {
	store.Store
	*calls
}

func (c countedStore) Get(ctx context.Context, key store.Key, s store.Consistency) (store.Item, error) {
	c.reads.Add(1)
	return c.Store.Get(ctx, key, s)
}

func (c countedStore) Query(ctx context.Context, q store.Query) (store.Page, error) {
	c.reads.Add(1)
	return c.Store.Query(ctx, q)
}

func (c countedStore) Transact(ctx context.Context, p store.Plan) error {
	c.writes.Add(1)
	return c.Store.Transact(ctx, p)
}

func (c countedStore) BatchWrite(ctx context.Context, writes []store.Write) error {
	c.writes.Add(1)
	return c.Store.BatchWrite(ctx, writes)
}

type countedLog struct {
	commitlog.Log
	*calls
}

func (c countedLog) Read(
	ctx context.Context, p commitlog.Partition, from int64, limit int,
) ([]*commitlog.Batch, error) {
	c.reads.Add(1)
	return c.Log.Read(ctx, p, from, limit)
}

func (c countedLog) PositionAt(ctx context.Context, p commitlog.Partition, t time.Time) (int64, error) {
	c.reads.Add(1)
	return c.Log.PositionAt(ctx, p, t)
}

func (c countedLog) Trim(ctx context.Context, p commitlog.Partition, before int64) (int64, error) {
	c.writes.Add(1)
	return c.Log.Trim(ctx, p, before)
}

// HQ-S7: what a topic costs while nothing happens in it is memory. In ten minutes, with all
// jobs, neither store nor log is asked for more when there are more topics, whether they are
// open or have not been used since the start; what has members costs its heartbeats.
func TestIdleTopicsCostNothing(t *testing.T) {
	for _, opened := range []bool{true, false} {
		for _, topics := range []int{20, 200} {
			bubble(t, func(t *testing.T, x *fixture) {
				c := &calls{}
				x.wrap = func(s store.Store) store.Store { return countedStore{s, c} }
				x.over = func(l commitlog.Log) commitlog.Log { return countedLog{l, c} }
				x.restart()
				for i := range topics {
					name := fmt.Sprint("t", i)
					x.groups(name)
					for g := range 3 {
						x.subscribe(name, fmt.Sprint("g", g), &topicv1.SubscriptionConfig{
							HeartbeatInterval: seconds(60), HeartbeatTimeout: durationpb.New(24 * hour),
						})
					}
					x.publish(name, 0, 1)
				}
				if !opened {
					x.restart()
				}
				x.attach("t0", "g0", "m")
				time.Sleep(6 * time.Minute) // each job has been there
				reads, writes := c.reads.Load(), c.writes.Load()
				time.Sleep(10 * time.Minute)
				reads, writes = c.reads.Load()-reads, c.writes.Load()-writes
				if reads != 0 || writes < 9 || writes > 11 {
					t.Errorf("%d topics, opened %t: %d reads and %d writes, of which 10 are heartbeats", topics, opened, reads, writes)
				}
			})
		}
	}
}

// What is made alike shares its settings after a restart; what changes one of them changes
// no other.
func TestSettingsAreShared(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("a", "g", "h")
		x.groups("b", "g")
		x.restart()
		a, b := x.engine.Catalog.Topic("a"), x.engine.Catalog.Topic("b")
		if a.View().Config != b.View().Config || a.Subscription("g").Config != b.Subscription("g").Config ||
			a.Subscription("g").Config != a.Subscription("h").Config {
			t.Error("settings are read more than once")
		}
		x.configure("a", &topicv1.TopicConfig{MessageRetention: seconds(60)})
		_, err := x.Cancel(t.Context(), op, "a", "g")
		if err != nil {
			t.Fatal(err)
		}
		x.subscribe("a", "g", &topicv1.SubscriptionConfig{MaxBackfillMessages: 7})
		for range 2 {
			a, b = x.engine.Catalog.Topic("a"), x.engine.Catalog.Topic("b")
			if n := a.Subscription("g").Config.GetMaxBackfillMessages(); n != 7 {
				t.Errorf("what was changed is %d", n)
			}
			for _, c := range []*topicv1.SubscriptionConfig{a.Subscription("h").Config, b.Subscription("g").Config} {
				if n := c.GetMaxBackfillMessages(); n != 1_000_000 {
					t.Errorf("what was not changed is %d", n)
				}
			}
			if a, b := a.View().Config.GetMessageRetention(), b.View().Config.GetMessageRetention(); a.GetSeconds() != 60 ||
				b.GetSeconds() != 86_400 {
				t.Errorf("kept %v and %v", a, b)
			}
			x.restart()
		}
	})
}

// What was published after the rest was trimmed is read once, and costs nothing until it is
// old enough itself.
func TestTrimmedTopicsCostNothing(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		c := &calls{}
		x.over = func(l commitlog.Log) commitlog.Log { return countedLog{l, c} }
		x.restart()
		x.groups("t")
		x.publish("t", 0, 1)
		x.jobs.Retain(t.Context())
		x.ahead.Add(int64(31 * 24 * hour))
		x.jobs.Retain(t.Context())
		x.publish("t", 1, 1)
		x.jobs.Retain(t.Context())
		reads := c.reads.Load()
		for range 3 {
			x.jobs.Retain(t.Context())
		}
		if start, end := x.bounds("t"); start != 1 || end != 2 || c.reads.Load() != reads {
			t.Errorf("%d reads, %d to %d are left", c.reads.Load()-reads, start, end)
		}
	})
}

// A group whose heartbeats are frequent does not wait for one whose are rare.
func TestHeartbeatsOfUnlikeGroups(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB})
		x.subscribe("t", "rare", &topicv1.SubscriptionConfig{HeartbeatInterval: seconds(3600)})
		x.subscribe("t", "often", &topicv1.SubscriptionConfig{HeartbeatInterval: seconds(1), HeartbeatTimeout: seconds(5)})
		x.attach("t", "often", "m")
		before := x.Counters().HeartbeatWrites.Load()
		time.Sleep(20 * time.Second)
		if n := x.Counters().HeartbeatWrites.Load() - before; n < 18 || n > 21 {
			t.Errorf("%d heartbeats in 20 s", n)
		}
	})
}

// However many groups fall silent together, a cycle names ten of them.
func TestSilentGroupsDoNotFillTheLog(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		for g := range 40 {
			x.subscribe("t", fmt.Sprint("g", g), nil)
		}
		time.Sleep(299 * time.Second) // of 300
		if n := x.logs.count("four fifths"); n != 10 || x.Counters().NearTimeout.Load() != 40 {
			t.Errorf("%d groups named of %d", n, x.Counters().NearTimeout.Load())
		}
	})
}
