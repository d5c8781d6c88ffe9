package topic

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/refusal"
)

const hour = time.Hour

func (x *fixture) start0(name string) int64 {
	x.t.Helper()
	d, err := x.Topic(x.t.Context(), op, name)
	if err != nil {
		x.t.Fatal(err)
	}
	return d.GetPartitions()[0].GetStart()
}

// later runs one cycle of the job as if it were that much later; nothing else happens.
func (x *fixture) later(d time.Duration) {
	x.t.Helper()
	x.ahead.Add(int64(d))
	x.jobs.Retain(x.t.Context())
	x.ahead.Add(-int64(d))
}

func earliest() *topicv1.SubscriptionConfig {
	return &topicv1.SubscriptionConfig{
		Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}, Backfill: true,
	}
}

// HQ-I01, HQ-I02, HQ-I03, HQ-I04, HQ-I06, HQ-P05, HQ-X3: what nobody was subscribed to is kept for
// the topic's own time and goes then; who subscribes before has it.
func TestZeroSubscriptionRetention(t *testing.T) {
	for _, keep := range []time.Duration{hour, 24 * hour, 168 * hour, 365 * 24 * hour} {
		bubble(t, func(t *testing.T, x *fixture) {
			x.configure("t", &topicv1.TopicConfig{
				Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, ZeroSubscriptionRetention: durationpb.New(keep),
				MaxRetention: durationpb.New(2 * 365 * 24 * hour), MessageRetention: durationpb.New(time.Minute),
				ZombieSubscriptionTtl: durationpb.New(2 * 365 * 24 * hour),
			})
			x.publish("t", 0, 5)
			x.later(keep - time.Minute)
			if n := x.start0("t"); n != 0 {
				t.Errorf("%s: trimmed to %d before", keep, n)
			}
			x.subscribe("t", "late", earliest())
			x.later(keep + time.Minute)
			if n := x.start0("t"); n != 0 {
				t.Errorf("%s: trimmed to %d though a group is to have it", keep, n)
			}
			s := x.attach("t", "late", "m")
			x.ack(s, x.want(s, numbers(0, 5)))
			if _, err := x.Cancel(t.Context(), op, "t", "late"); err != nil {
				t.Fatal(err)
			}
			x.publish("t", 5, 5)
			x.later(keep + 2*time.Minute)
			if n := x.start0("t"); n != 10 {
				t.Errorf("%s: trimmed to %d, not 10", keep, n)
			}
		})
	}
}

// HQ-E11, HQ-E15, HQ-E17, HQ-P02: what a group has not acknowledged stays, up to the retention
// that nothing outlives; each removal is recorded.
func TestTrim(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "fast", "slow")
		fast, slow := x.attach("t", "fast", "m"), x.attach("t", "slow", "m")
		for i := range 10 {
			x.publish("t", 10*i, 10)
		}
		x.ack(fast, x.want(fast, numbers(0, 100)))
		x.ack(slow, x.want(slow, numbers(0, 100))[:55])
		x.later(23 * hour)
		if n := x.start0("t"); n != 0 {
			t.Errorf("trimmed to %d within the retention", n)
		}
		x.later(25 * hour)
		if n := x.start0("t"); n != 50 { // a batch goes as a whole
			t.Errorf("trimmed to %d", n)
		}
		if x.audit.count("server Trim t ok partition 0, positions 0 to 49, 50 messages") != 1 {
			t.Error(x.audit.text.String())
		}
		x.later(26 * hour)
		if x.Counters().TrimsSkipped.Load() == 0 {
			t.Error("nothing says that a group holds messages")
		}
		x.restart()
		if n := x.start0("t"); n != 50 {
			t.Errorf("begins with %d after a restart", n)
		}
		x.later(31 * 24 * hour)
		if n := x.start0("t"); n != 100 {
			t.Errorf("trimmed to %d, not all", n)
		}
	})
}

// HQ-E14: a group whose position does not move holds messages for the zombie's time; then it
// is moved on, which is recorded, and keeps what is newer.
func TestZombie(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 10)
		x.want(s, numbers(0, 10))
		s.End(serving.Broken)
		x.attach("t", "g", "other") // alive, and does nothing
		x.later(6 * 24 * hour)
		if n := x.start0("t"); n != 0 {
			t.Errorf("trimmed to %d", n)
		}
		x.later(8 * 24 * hour)
		if n := x.start0("t"); n != 10 {
			t.Errorf("trimmed to %d", n)
		}
		if x.audit.count("ReleaseZombie t ok group g, partition 0, positions 0 to 9, 10 messages") != 1 {
			t.Error(x.audit.text.String())
		}
	})
}

// HQ-E14: the group of a queue is not moved on, however long its position does not move: its
// messages are for no other group.
func TestQueueIsNoZombie(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("q", nil)
		s := x.attach("q", "", "m")
		x.publish("q", 0, 10)
		x.want(s, numbers(0, 10))
		s.End(serving.Broken)
		x.later(8 * 24 * hour)
		if n := x.audit.count("ReleaseZombie"); n != 0 {
			t.Errorf("it is moved on %d times: %s", n, x.audit.text.String())
		}
		testkit.Equal(t, "messages", payloads(x.work(x.attach("q", "", "late"))), numbers(0, 10))
	})
}

// HQ-J01, HQ-J06: each position begins with exactly its message.
func TestStarts(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.publish("t", 0, 3)
		testkit.Advance(time.Second)
		mid := time.Now()
		x.publish("t", 3, 3)
		for name, c := range map[string]struct {
			start *topicv1.Position
			want  string
		}{
			"earliest": {&topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}, numbers(0, 8)},
			"latest":   {&topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}, numbers(6, 2)},
			"default":  {nil, numbers(6, 2)},
			"time":     {&topicv1.Position{At: &topicv1.Position_Time{Time: timestamppb.New(mid)}}, numbers(3, 5)},
			"id":       {&topicv1.Position{At: &topicv1.Position_MessageId{MessageId: "0-4"}}, numbers(4, 4)},
		} {
			x.subscribe("t", name, &topicv1.SubscriptionConfig{Start: c.start})
			defer func() { x.want(x.attach("t", name, "m"), c.want) }()
		}
		x.publish("t", 6, 2)
		for id, r := range map[string]refusal.Reason{"0-9": refusal.PositionOutOfRange, "7-0": refusal.PositionOutOfRange} {
			_, err := x.CreateSubscription(t.Context(), op, &topicv1.CreateSubscriptionRequest{
				Topic: "t", Group: "bad", Config: &topicv1.SubscriptionConfig{
					Start: &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: id}},
				},
			})
			refusedAs(t, err, r)
			_, err = x.Subscription(t.Context(), op, "t", "bad")
			refusedAs(t, err, refusal.SubscriptionNotFound)
		}
	})
}

// A seek delivers again, or passes over, and says before what it would do.
func TestSeek(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 10)
		x.ack(s, x.want(s, numbers(0, 10)))
		to := &topicv1.SeekSubscriptionRequest{
			Topic: "t", Group: "g", DryRun: true, To: &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: "0-4"}},
		}
		for _, dry := range []bool{true, false} {
			to.DryRun = dry
			r, err := x.Seek(t.Context(), op, to)
			if err != nil || r.GetSeeks()[0].GetRedelivered() != 6 || r.GetSeeks()[0].GetTo() != 4 {
				t.Error(r, err)
			}
			if dry {
				x.want(s, "")
			}
		}
		x.want(s, numbers(4, 6))
		x.restart()
		x.want(x.attach("t", "g", "m"), numbers(4, 6))
		if n := strings.Count(x.audit.text.String(), "SeekSubscription"); n != 2 {
			t.Errorf("%d seeks are recorded", n)
		}
	})
}

// Messages take a sixteenth of the process's memory at most, and never more than 1 GiB.
func TestResidentBytes(t *testing.T) {
	for memory, want := range map[int64]int64{0: 256 << 20, 1 << 30: 64 << 20, 8 << 30: 512 << 20, 1 << 40: 1 << 30} {
		if n := ResidentBytes(memory); n != want {
			t.Errorf("%d bytes of %d, not %d", n, memory, want)
		}
	}
}

// full is a store whose disk is full while it is on, as package embedded has it.
type full struct {
	store.Store
	on *atomic.Bool
}

func (f full) refuse(writes []store.Write) bool {
	return f.on.Load() && slices.ContainsFunc(writes, func(w store.Write) bool {
		return w.Op != store.OpDelete && !w.Frees && w.Key.Table != store.Subscriptions
	})
}

func (f full) Transact(ctx context.Context, p store.Plan) error {
	if f.refuse(p.Writes) {
		return store.ErrFull
	}
	return f.Store.Transact(ctx, p)
}

func (f full) BatchWrite(ctx context.Context, writes []store.Write) error {
	if f.refuse(writes) {
		return store.ErrFull
	}
	return f.Store.BatchWrite(ctx, writes)
}

// On a full disk what makes room keeps working: messages are trimmed, a group can be cancelled so
// that it holds none, and a topic can be removed.
func TestFullDiskIsMadeRoomOn(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on := &atomic.Bool{}
		x.wrap = func(s store.Store) store.Store { return full{s, on} }
		x.restart()
		x.groups("t", "g")
		for i := range 10 {
			x.publish("t", i, 1)
		}
		s := x.attach("t", "g", "m")
		had := x.want(s, numbers(0, 10))
		on.Store(true)
		x.ack(s, had[:5])
		x.later(25 * hour)
		if n := x.start0("t"); n != 5 {
			t.Errorf("trimmed to %d", n)
		}
		if _, err := x.Cancel(t.Context(), op, "t", "g"); err != nil {
			t.Error(err)
		}
		x.later(31 * 24 * hour)
		if n := x.start0("t"); n != 10 {
			t.Errorf("trimmed to %d after the group has gone", n)
		}
		if err := x.Delete(t.Context(), op, "t"); err != nil {
			t.Error(err)
		}
		_, err := x.Configure(t.Context(), op, &topicv1.ConfigureTopicRequest{Topic: "t"})
		if !errors.Is(err, store.ErrFull) {
			t.Error("a topic can be made: ", err)
		}
	})
}

// A clock that is set far ahead removes nothing until it has stayed there for a day.
func TestClockThatJumps(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		x.attach("t", "g", "m") // alive, and does nothing
		x.publish("t", 0, 10)
		testkit.Advance(5 * time.Minute)
		x.ahead.Add(int64(400 * 24 * hour))
		testkit.Advance(2 * hour)
		if n := x.start0("t"); n != 0 || x.logs.count("the clock was set") != 1 {
			t.Errorf("trimmed to %d\n%s", n, x.logs.text.String())
		}
		x.ahead.Add(-int64(400 * 24 * hour))
		testkit.Advance(2 * hour)
		if n := x.start0("t"); n != 0 {
			t.Errorf("trimmed to %d after it was set back", n)
		}
		x.ahead.Add(int64(400 * 24 * hour))
		testkit.Advance(25 * hour)
		if n := x.start0("t"); n != 10 {
			t.Errorf("trimmed to %d after a day", n)
		}
	})
}

// deaf is a log of which one partition cannot be searched.
type deaf struct{ commitlog.Log }

func (d deaf) PositionAt(ctx context.Context, p commitlog.Partition, at time.Time) (int64, error) {
	if p.Number == 0 {
		return 0, store.ErrUnavailable
	}
	return d.Log.PositionAt(ctx, p, at)
}

// What fails in one partition holds up no other.
func TestRetentionGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.over = func(l commitlog.Log) commitlog.Log { return deaf{l} }
		x.restart()
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 2})
		for i := range 20 {
			x.publish("t", i, 1)
		}
		x.later(31 * 24 * hour)
		d, err := x.Topic(t.Context(), op, "t")
		if err != nil {
			t.Fatal(err)
		}
		a, b := d.GetPartitions()[0], d.GetPartitions()[1]
		if a.GetStart() != 0 || b.GetStart() == 0 || b.GetStart() != b.GetEnd() {
			t.Error(a, b)
		}
	})
}

// Retention opens topics only if they have something that may go: the others cost a process
// nothing that only starts.
func TestRetentionOpensWhatHasAged(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		const n = 20
		for i := range n {
			x.groups(numbers(i, 1))
		}
		x.publish("0", 0, 5)
		x.publish("1", 0, 5)
		x.restart()
		testkit.Advance(2 * time.Minute)
		if open := x.Sizes().Open; open != 0 {
			t.Errorf("%d topics are open", open)
		}
		x.later(31 * 24 * hour)
		if open := x.Sizes().Open; open != 2 {
			t.Errorf("%d topics are open, not 2", open)
		}
		if a, b := x.start0("0"), x.start0("1"); a != 5 || b != 5 {
			t.Error(a, b)
		}
	})
}
