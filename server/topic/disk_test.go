package topic

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// slowDisk makes what is appended durable once it is released, while on is set.
type slowDisk struct {
	store.Records
	on      atomic.Bool
	release chan struct{}
}

func (d *slowDisk) Commit(
	ctx context.Context, list []store.Record, rows ...store.Key,
) (func() error, error) {
	wait, err := d.Records.Commit(ctx, list, rows...)
	if err != nil || !d.on.Load() {
		return wait, err
	}
	return func() error {
		<-d.release
		return wait()
	}, nil
}

// onSlowDisk restarts the process, with a log on a disk that can be slow.
func (x *fixture) onSlowDisk() *slowDisk {
	d := &slowDisk{release: make(chan struct{})}
	x.over = func(commitlog.Log) commitlog.Log {
		d.Records = records.Of(x.store)
		return commitlog.NewLocal(d, time.Now)
	}
	x.restart()
	return d
}

// A subscription changes while messages are on their way to the disk, and comes behind them:
// who was subscribed when they got their positions gets them, who begins then does not.
// Nothing is delivered before it is durable.
func TestChangesDoNotWaitForTheDisk(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		d := x.onSlowDisk()
		x.configure("t", &topicv1.TopicConfig{
			Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, BlockWritesOnZeroSubscriptions: proto.Bool(true),
		})
		x.subscribe("t", "g", nil)
		x.subscribe("t", "h", nil)
		g := x.attach("t", "g", "m")
		d.on.Store(true)
		published := make(chan error, 1)
		go func() {
			_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: messages(0, 3)})
			published <- err
		}()
		synctest.Wait()
		// A publish that held the topic while the disk syncs would hold this up for good.
		x.engine.Catalog.Topic("t").Changing().End()
		x.want(g, "")
		if n := x.subscribe("t", "late", nil).GetPartitions()[0].GetStart(); n != 3 {
			t.Errorf("a group that began meanwhile starts at %d, not 3", n)
		}
		x.want(g, "")
		if _, err := x.Cancel(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		for _, group := range []string{"h", "late"} {
			if _, err := x.Pause(t.Context(), op, "t", group); err != nil {
				t.Fatal(err)
			}
		}
		_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: messages(3, 1)})
		refusedAs(t, err, refusal.NoSubscriptions)
		select {
		case err := <-published:
			t.Fatal("it is answered before it is durable: ", err)
		default:
		}
		d.on.Store(false)
		close(d.release)
		if err := <-published; err != nil {
			t.Fatal(err)
		}
		for group, want := range map[string]string{"h": numbers(0, 3), "late": ""} {
			if _, err := x.Resume(t.Context(), op, "t", group); err != nil {
				t.Fatal(err)
			}
			s := x.attach("t", group, "m")
			x.ack(s, x.want(s, want))
			s.End("DETACHED")
		}
		if st := x.status("t", "0-2"); len(st.GetRequired()) != 1 || st.GetRequired()[0] != "h" {
			t.Error(st)
		}
	})
}

// A topic is removed while messages are on their way to the disk: none of them stays in
// memory.
func TestRemovedWhileTheDiskSyncs(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		d := x.onSlowDisk()
		x.groups("t")
		d.on.Store(true)
		published := make(chan error, 1)
		go func() {
			_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: messages(0, 3)})
			published <- err
		}()
		synctest.Wait()
		if x.Sizes().Resident == 0 {
			t.Fatal("nothing is being written")
		}
		removed := make(chan error, 1)
		go func() { removed <- x.Delete(t.Context(), op, "t") }()
		synctest.Wait()
		d.on.Store(false)
		close(d.release)
		if err := <-published; err != nil {
			t.Error(err)
		}
		if err := <-removed; err != nil {
			t.Error(err)
		}
		if n := x.Sizes().Resident; n != 0 {
			t.Errorf("%d bytes of a topic that is gone are in memory", n)
		}
	})
}

// noMachine fails the writes of what partitions have beside their groups while it is on.
type noMachine struct {
	store.Store
	on *atomic.Bool
}

func (n noMachine) Transact(ctx context.Context, p store.Plan) error {
	for _, w := range p.Writes {
		if n.on.Load() && w.Key.SK == table.MachineKey(1, 0).SK && w.Key.Table == store.Subscriptions {
			return store.ErrUnavailable
		}
	}
	return n.Store.Transact(ctx, p)
}

// What a group has acknowledged that ended long ago stays complete: its cursor is removed once
// that is stored without it.
func TestForgottenGroupsMessagesStayComplete(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on := &atomic.Bool{}
		x.wrap = func(s store.Store) store.Store { return noMachine{s, on} }
		x.restart()
		x.configure("t", &topicv1.TopicConfig{
			Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, MaxRetention: seconds(40 * 24 * 3600),
			MessageRetention: seconds(40 * 24 * 3600), ZeroSubscriptionRetention: seconds(40 * 24 * 3600),
		})
		x.subscribe("t", "g", nil)
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 5)
		x.ack(s, x.want(s, numbers(0, 5))[:3])
		s.End("DETACHED")
		if _, err := x.Cancel(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		on.Store(true)
		x.later(31 * 24 * time.Hour)
		if x.state("t", "g") != topicv1.SubscriptionState_SUBSCRIPTION_STATE_CANCELLED {
			t.Error("its row is gone, and what it has acknowledged is stored nowhere")
		}
		on.Store(false)
		x.later(31 * 24 * time.Hour)
		_, err := x.Subscription(t.Context(), op, "t", "g")
		refusedAs(t, err, refusal.SubscriptionNotFound)
		x.restart()
		for id, want := range map[string]topicv1.MessageStatus{
			"0-2": topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED, "0-3": topicv1.MessageStatus_MESSAGE_STATUS_PENDING,
		} {
			if got := x.status("t", id).GetStatus(); got != want {
				t.Errorf("%s is %s, want %s", id, got, want)
			}
		}
	})
}
