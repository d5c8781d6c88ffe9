package topic

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// HQ-P03: a full batch is followed by the next one at once: one run trims all topics that
// have something old.
func TestFullBatches(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		const topics = 110 // a batch opens 100
		for i := range topics {
			x.configure(fmt.Sprintf("t%d", i), &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB})
			x.publish(fmt.Sprintf("t%d", i), 0, 320) // 35,200 in all
		}
		x.restart()
		x.later(31 * 24 * hour)
		if n := x.Counters().Trimmed.Load(); n != topics*320 {
			t.Errorf("%d messages were trimmed", n)
		}
		if n := x.Counters().TrimBacklog.Load(); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// slowTrim is a store in which what a trim writes takes a while, or fails.
type slowTrim struct {
	store.Store
	takes   *atomic.Int64 // ns
	fails   *atomic.Bool
	now     atomic.Int32
	most    *atomic.Int32
	cut     *atomic.Int32 // were ended by their context
	written *atomic.Int32
}

func (s *slowTrim) Transact(ctx context.Context, p store.Plan) error {
	if len(p.Writes) != 1 || p.Writes[0].Name != "trim" {
		return s.Store.Transact(ctx, p)
	}
	s.most.Store(max(s.most.Load(), s.now.Add(1)))
	defer s.now.Add(-1)
	select {
	case <-time.After(time.Duration(s.takes.Load())):
	case <-ctx.Done():
		s.cut.Add(1)
		return ctx.Err()
	}
	if s.fails.Load() {
		return store.ErrUnavailable
	}
	s.written.Add(1)
	return s.Store.Transact(ctx, p)
}

// trims runs a test with two topics that have something to trim.
func trims(t *testing.T, f func(t *testing.T, x *fixture, s *slowTrim)) {
	t.Helper()
	bubble(t, func(t *testing.T, x *fixture) {
		s := &slowTrim{takes: &atomic.Int64{}, fails: &atomic.Bool{}, most: &atomic.Int32{}, cut: &atomic.Int32{},
			written: &atomic.Int32{}}
		x.wrap = func(inner store.Store) store.Store { s.Store = inner; return s }
		x.restart()
		for _, name := range []string{"a", "b"} {
			x.configure(name, &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB,
				ZeroSubscriptionRetention: durationpb.New(hour), MessageRetention: seconds(60)})
			x.publish(name, 0, 10)
		}
		testkit.Advance(hour - 2*time.Minute)
		f(t, x, s)
	})
}

// HQ-P06: a stop waits for what a run is in the middle of, for 30 s at most; what follows is
// left to the next process.
func TestStopWaitsForARun(t *testing.T) {
	for _, tt := range []struct{ takes, stops time.Duration }{
		{35 * time.Second, 25 * time.Second}, {time.Minute, 30 * time.Second},
	} {
		trims(t, func(t *testing.T, x *fixture, s *slowTrim) {
			s.takes.Store(int64(tt.takes))
			testkit.Advance(7*time.Minute + 10*time.Second)
			if s.now.Load() != 1 {
				t.Fatal("no trim is under way")
			}
			begin := time.Now()
			x.stop()
			testkit.Equal(t, "a stop takes", time.Since(begin).Round(time.Second), tt.stops)
			cut := tt.stops == 30*time.Second
			testkit.Equal(t, "cut", s.cut.Load() == 1, cut)
			testkit.Equal(t, "finished", s.written.Load() == 1, !cut)
			x.stop = func() {}
		})
	}
}

// HQ-P07: a run that fails is logged, and the next one does what it could not.
func TestRunFails(t *testing.T) {
	trims(t, func(t *testing.T, x *fixture, s *slowTrim) {
		s.fails.Store(true)
		testkit.Advance(10 * time.Minute)
		if x.start0("a") != 0 || x.logs.count("a topic cannot be trimmed") == 0 || x.Counters().JobsFailed.Load() == 0 {
			t.Error(x.start0("a"), x.logs.text.String())
		}
		last := x.Admin().Jobs().GetJobs()[0].GetLast()
		if last.GetFailed() != 2 || last.GetProblem() == "" {
			t.Error(last)
		}
		s.fails.Store(false)
		testkit.Advance(5 * time.Minute)
		if a, b := x.start0("a"), x.start0("b"); a != 10 || b != 10 {
			t.Errorf("trimmed to %d and %d", a, b)
		}
		last = x.Admin().Jobs().GetJobs()[0].GetLast()
		if last.GetFailed() != 0 || last.GetDone() != 20 || last.GetProblem() != "" || last.GetTopics() != 2 {
			t.Error(last)
		}
	})
}

// HQ-P04, HQ-P18: of ten runs that are asked for at once one runs, and nothing is removed
// twice; each leaves its row.
func TestOneRunAtATime(t *testing.T) {
	trims(t, func(t *testing.T, x *fixture, s *slowTrim) {
		s.takes.Store(int64(time.Second))
		testkit.Advance(2*time.Minute + time.Second) // a minute after the schedule's run
		var all sync.WaitGroup
		var ran, refused atomic.Int32
		for range 10 {
			all.Go(func() {
				_, err := x.Admin().RunJob(context.Background(), ada, &topicv1.RunJobRequest{Job: topicv1.Job_JOB_TRIM})
				if err == nil {
					ran.Add(1)
					return
				}
				refused.Add(1)
				refusedAs(t, err, refusal.JobRunning)
			})
		}
		all.Wait()
		if ran.Load() != 1 || refused.Load() != 9 || s.most.Load() != 1 {
			t.Errorf("%d ran, %d were refused, %d at once", ran.Load(), refused.Load(), s.most.Load())
		}
		if n := x.Counters().Trimmed.Load(); n != 20 {
			t.Errorf("%d messages were trimmed", n)
		}
		if n := x.audit.count(ada + " RunJob "); n != 10 {
			t.Errorf("%d rows", n)
		}
	})
}

// While the clock is not to be believed, an operator cannot have anything removed either.
func TestRunJobAsksTheClock(t *testing.T) {
	trims(t, func(t *testing.T, x *fixture, _ *slowTrim) {
		x.ahead.Add(int64(400 * 24 * hour))
		r, err := x.Admin().RunJob(t.Context(), ada, &topicv1.RunJobRequest{Job: topicv1.Job_JOB_TRIM})
		if err != nil || !strings.Contains(r.GetRun().GetProblem(), "the clock was set") || x.start0("a") != 0 {
			t.Error(r, err)
		}
	})
}

// HQ-P11, HQ-C11: a subscription is deleted that is dead or cancelled, for 30 days, and holds
// nothing; each of these alone keeps it. HQ-P17: positions that belong to no subscription go.
func TestSubscriptionsAreCleanedUp(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{
			Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, MaxRetention: durationpb.New(365 * 24 * hour),
			ZombieSubscriptionTtl: durationpb.New(90 * 24 * hour),
		})
		for _, g := range []string{"active", "cancelled", "paused"} {
			x.subscribe("t", g, nil)
		}
		x.subscribe("t", "dead", heartbeatConfig(1, 5))
		x.subscribe("t", "holds", heartbeatConfig(1, 5))
		testkit.Advance(time.Minute)
		x.attach("t", "active", "m")
		if _, err := x.Cancel(t.Context(), op, "t", "cancelled"); err != nil {
			t.Fatal(err)
		}
		if _, err := x.Pause(t.Context(), op, "t", "paused"); err != nil {
			t.Fatal(err)
		}
		orphan := store.Write{Op: store.OpPut, Name: "cursor", Item: table.Cursor{Epoch: 1, State: []byte{1}}.Item(),
			Key: table.CursorKey(int64(x.engine.Catalog.Topic("t").Number), 0, "dead", 7)}
		if err := x.store.BatchWrite(t.Context(), []store.Write{orphan}); err != nil {
			t.Fatal(err)
		}
		left := func() string {
			var names []string
			tp := x.engine.Catalog.Topic("t")
			for _, sub := range tp.Subscriptions() {
				names = append(names, sub.Group)
			}
			return strings.Join(names, " ")
		}
		x.later(30*24*hour - 2*time.Minute)
		if s := left(); s != "active cancelled dead holds paused" {
			t.Error("too early: ", s)
		}
		if n := x.cursors("t", "dead"); n != 1 {
			t.Errorf("%d cursors of the group whose one was left behind", n)
		}
		// What is there for a dead group that was not released yet keeps it.
		x.engine.Topics.Opened(x.engine.Catalog.Topic("t").Number).Parts[0].Do(func(m *machine.Machine) {
			g := m.Group("holds")
			if _, err := g.Resurrect(-1, machine.ByBound); err != nil {
				t.Error(err)
			}
		})
		x.publish("t", 0, 1)
		x.later(30*24*hour + 2*time.Minute)
		if s := left(); s != "active holds paused" {
			t.Error(s)
		}
		if x.audit.count("server DropSubscription t ok group dead, dead") != 1 {
			t.Error(x.audit.text.String())
		}
		x.gone("t", "cancelled")
		x.gone("t", "dead")
	})
}

// HQ-Q17: subscriptions are counted by state, and the oldest message that an active group
// has to do is known.
func TestSurvey(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "a", "b", "c")
		x.subscribe("t", "d", heartbeatConfig(1, 5))
		if _, err := x.Pause(t.Context(), op, "t", "b"); err != nil {
			t.Fatal(err)
		}
		if _, err := x.Cancel(t.Context(), op, "t", "c"); err != nil {
			t.Fatal(err)
		}
		x.attach("t", "a", "m")
		x.publish("t", 0, 1)
		testkit.Advance(2 * time.Minute)
		g := &x.Counters().Gauges
		if g.Active.Load() != 1 || g.Paused.Load() != 1 || g.Dead.Load() != 1 || g.Cancelled.Load() != 1 {
			t.Error(g.Active.Load(), g.Paused.Load(), g.Dead.Load(), g.Cancelled.Load())
		}
		if d := x.metric("t", "a").Oldest; d < 105*time.Second || d > 2*time.Minute {
			t.Errorf("the oldest is %s old", d)
		}
		if g.Tracked.Load() < 3 {
			t.Errorf("%d runs are kept", g.Tracked.Load())
		}
	})
}

// HQ-P14, HQ-P15, HQ-Q01, HQ-Q04: what is removed is counted, trims are counted and timed; what is
// older than its retention and stays is known, and whether that grows from trim to trim.
func TestTrimIsMeasured(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, MessageRetention: seconds(60)})
		x.subscribe("t", "slow", nil)
		s := x.attach("t", "slow", "m")
		for range 4 { // more expires than goes: none does
			x.publish("t", 0, 10)
			testkit.Advance(5 * time.Minute)
		}
		c := x.Counters()
		if behind, kept := c.TrimBehind.Load(), c.TrimBacklog.Load(); behind < 3 || kept < 30 {
			t.Errorf("%d times behind, %d kept", behind, kept)
		}
		x.ack(s, x.receive(s))
		testkit.Advance(11 * time.Minute)
		if behind, kept := c.TrimBehind.Load(), c.TrimBacklog.Load(); behind != 0 || kept != 0 {
			t.Errorf("%d times behind, %d kept", behind, kept)
		}
		runs, _ := x.Jobs().Trims()
		if n := c.Trimmed.Load(); n != 40 || runs < 6 {
			t.Errorf("%d messages removed in %d runs", n, runs)
		}
	})
}

// noState is a store that takes no change of a subscription while it is on.
type noState struct {
	store.Store
	on *atomic.Bool
}

func (s noState) Transact(ctx context.Context, p store.Plan) error {
	for _, w := range p.Writes {
		if s.on.Load() && w.Name == "subscription" {
			return store.ErrUnavailable
		}
	}
	return s.Store.Transact(ctx, p)
}

// HQ-Q05: a dead group that cannot be marked is counted, and marked when it can be.
func TestDetectionFails(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on := &atomic.Bool{}
		x.wrap = func(s store.Store) store.Store { return noState{s, on} }
		x.restart()
		x.groups("t")
		x.subscribe("t", "g", heartbeatConfig(10, 50))
		on.Store(true)
		testkit.Advance(2 * time.Minute)
		if n := x.Counters().DetectionFailed.Load(); n == 0 || x.state("t", "g") != storage.Active {
			t.Errorf("failed %d times", n)
		}
		on.Store(false)
		testkit.Advance(2 * time.Minute)
		if st := x.state("t", "g"); st != storage.Dead {
			t.Error(st)
		}
		testkit.Equal(t, "detection", x.Admin().Jobs().GetJobs()[1].GetLast().GetProblem(), "")
	})
}
