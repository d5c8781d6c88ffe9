package topic

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/table"
)

// snapshots are disks as a power failure leaves them at steps of a purge.
type snapshots struct {
	x     *fixture
	rng   *rand.Rand
	disks map[string]*embeddedtest.Disk
	fails atomic.Bool // the log removes nothing
}

func (s *snapshots) take(step string) {
	if s.disks[step] == nil {
		s.disks[step] = s.x.disk.PowerLoss(s.rng)
	}
}

type (
	snapshotStore struct {
		store.Store
		s *snapshots
	}
	snapshotLog struct {
		commitlog.Log
		s *snapshots
	}
)

func (o snapshotStore) Transact(ctx context.Context, p store.Plan) error {
	err := o.Store.Transact(ctx, p)
	if err == nil && p.Writes[0].Name == "purge" {
		o.s.take("stored")
	}
	return err
}

var errRemoval = errors.New("the log cannot remove it")

func (o snapshotLog) Trim(ctx context.Context, p commitlog.Partition, before int64) (int64, error) {
	if o.s.fails.Load() {
		return 0, errRemoval
	}
	o.s.take("taken from the groups")
	start, err := o.Log.Trim(ctx, p, before)
	o.s.take("removed")
	return start, err
}

// Wherever the power fails after a purge was stored, the next process finishes it: without a call it removes
// the messages from the log, no group gets them, and ledgers count them as forced, once.
func TestPowerLossInAPurge(t *testing.T) {
	for _, step := range []string{"stored", "taken from the groups", "removed"} {
		t.Run(step, func(t *testing.T) {
			bubble(t, func(t *testing.T, x *fixture) {
				s := &snapshots{x: x, rng: rand.New(rand.NewPCG(4, 4)), disks: map[string]*embeddedtest.Disk{}}
				x.wrap = func(st store.Store) store.Store { return snapshotStore{st, s} }
				x.over = func(l commitlog.Log) commitlog.Log { return snapshotLog{l, s} }
				x.restart()
				x.groups("t", "g")
				x.subscribe("t", "dead", heartbeatConfig(2, 10))
				m := x.attach("t", "g", "m")
				for i := range 4 {
					x.publish("t", 3*i, 3)
				}
				x.ack(m, x.want(m, numbers(0, 12))[:2])
				testkit.Advance(30 * time.Second)
				if got := x.purge(position("0-7")); got != "0:0-7 dead:7 g:5" {
					t.Fatal(got)
				}
				x.stop()
				x.disk = s.disks[step]
				x.start()
				testkit.Advance(2 * time.Minute)
				n := x.engine.Catalog.Topic("t").Number
				if start, _, err := x.engine.Log.Bounds(t.Context(), commitlog.Partition{Topic: n}); err != nil || start != 6 {
					t.Errorf("the log begins with %d, %v", start, err)
				}
				x.wantReleased(step, "true [0 0 0 0 5 0]")
				if got := x.released("dead"); got != "true [0 0 0 0 7 0]" {
					t.Errorf("dead: %s", got)
				}
				x.want(x.attach("t", "g", "m"), numbers(7, 5))
				x.want(x.attach("t", "dead", "m"), numbers(7, 5))
			})
		})
	}
}

// If the log cannot remove what was purged, the caller hears so. Groups do not get it, and the removal is
// tried again.
func TestPurgeOfAFailingLog(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		s := &snapshots{x: x, rng: rand.New(rand.NewPCG(4, 4)), disks: map[string]*embeddedtest.Disk{}}
		x.over = func(l commitlog.Log) commitlog.Log { return snapshotLog{l, s} }
		x.restart()
		x.groups("t", "g")
		x.publish("t", 0, 10)
		s.fails.Store(true)
		_, err := x.Purge(t.Context(), op, &topicv1.PurgeMessagesRequest{Topic: "t", Before: latest()})
		if !errors.Is(err, errRemoval) {
			t.Fatal(err)
		}
		x.want(x.attach("t", "g", "m"), "")
		x.wantReleased("before the log removes it", "true [0 0 0 0 10 0]")
		testkit.Advance(2 * time.Minute)
		if x.logs.count("what was purged of a topic cannot be removed") == 0 || !x.purgeRow() {
			t.Error("it is not tried again")
		}
		s.fails.Store(false)
		testkit.Advance(2 * time.Minute)
		if x.purgeRow() {
			t.Error("it is not done")
		}
		x.wantReleased("in the end", "true [0 0 0 0 10 0]")
	})
}

// A log that was put back to an earlier copy gives positions again that a stored purge names. It does not
// remove what is published there.
func TestPurgeBeyondTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		x.publish("t", 0, 10)
		testkit.Must(t, x.store.Transact(t.Context(), store.Plan{Writes: []store.Write{{
			Op: store.OpPut, Key: table.TopicPurgeKey("t"), Name: "purge",
			Item: table.TopicPurge{Before: map[int32]int64{0: 100}}.Item(),
		}}}))
		x.restart()
		x.publish("t", 10, 5)
		testkit.Advance(2 * time.Minute)
		x.restart()
		testkit.Advance(2 * time.Minute)
		x.want(x.attach("t", "g", "m"), numbers(10, 5))
		if x.purgeRow() {
			t.Error("it would remove what is published later")
		}
	})
}
