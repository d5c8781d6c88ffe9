package topic

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

func heartbeatConfig(interval, timeout int) *topicv1.SubscriptionConfig {
	return &topicv1.SubscriptionConfig{HeartbeatInterval: seconds(interval), HeartbeatTimeout: seconds(timeout)}
}

// HQ-C01, HQ-C03, HQ-C12, HQ-C17: a pair of topic and group has one subscription, which is
// active; after it was cancelled another generation begins where it asks to.
func TestGenerations(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		first := x.subscription("t", "g")
		if first.GetState() != storage.Active || first.GetGeneration() != 1 || first.GetSubscribedAt() == nil ||
			first.GetConfig().GetHeartbeatTimeout() == nil || first.GetLastActiveAt() == nil {
			t.Error(first)
		}
		r, err := x.CreateSubscription(t.Context(), op, &topicv1.CreateSubscriptionRequest{Topic: "t", Group: "g"})
		if err != nil || r.GetCreated() || r.GetSubscription().GetGeneration() != 1 {
			t.Error(r, err)
		}
		old := x.attach("t", "g", "m")
		x.publish("t", 0, 10)
		had := x.want(old, numbers(0, 10))
		if _, err := x.Cancel(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		for _, f := range []func(context.Context, Caller, string, string) (*topicv1.Subscription, error){x.Pause, x.Resume} {
			_, err := f(t.Context(), op, "t", "g")
			refusedAs(t, err, refusal.InvalidTransition)
		}
		_, err = x.Heartbeat(t.Context(), op, "t", "g")
		refusedAs(t, err, refusal.SubscriptionGone)
		if s := x.subscribe("t", "g", nil); s.GetGeneration() != 2 || s.GetPartitions()[0].GetStart() != 10 {
			t.Error(s)
		}
		if _, err := old.Ack(t.Context(), at(had)); err == nil {
			t.Error("a session of the generation before acknowledges")
		}
		x.want(x.attach("t", "g", "m"), "")
		x.restart()
		if s := x.subscription("t", "g"); s.GetGeneration() != 2 || s.GetState() != storage.Active {
			t.Error(s)
		}
	})
}

// HQ-C04, HQ-C05, HQ-C15, HQ-C20, HQ-C24: a paused group gets nothing, does not die and,
// resumed, gets what was there and what came meanwhile.
func TestPause(t *testing.T) {
	for _, restart := range []bool{false, true} {
		bubble(t, func(t *testing.T, x *fixture) {
			x.groups("t")
			x.subscribe("t", "g", heartbeatConfig(1, 5))
			s := x.attach("t", "g", "m")
			x.publish("t", 0, 5)
			had := x.want(s, numbers(0, 5))
			x.ack(s, had[:2])
			if _, err := x.Pause(t.Context(), op, "t", "g"); err != nil {
				t.Fatal(err)
			}
			e, err := s.Receive(t.Context(), 10)
			for err == nil && e.State == 0 {
				e, err = s.Receive(t.Context(), 10)
			}
			if e.State != storage.Paused || err != nil {
				t.Error(e, err)
			}
			if r := x.ack(s, had[2:3]); len(r) != 1 || r[0].GetOutcome() != topicv1.Outcome_OUTCOME_NOT_ACTIVE {
				t.Error(r) // HQ-D07
			}
			x.publish("t", 5, 5)
			x.want(s, "")
			s.End(serving.Broken)
			testkit.Advance(time.Hour)
			if st := x.state("t", "g"); st != storage.Paused {
				t.Error(st)
			}
			if restart {
				x.restart()
			}
			s = x.attach("t", "g", "m")
			x.want(s, "")
			if _, err := x.Resume(t.Context(), op, "t", "g"); err != nil {
				t.Fatal(err)
			}
			x.want(s, numbers(2, 8))
		})
	}
}

// HQ-C06, HQ-L11, HQ-L12, HQ-N1, HQ-N3, HQ-N4, HQ-P09, HQ-Q02, HQ-X1: a group
// whose members are gone is dead one timeout and one cycle later at the latest, holds
// nothing, and what only it was to receive goes after the retention for messages without
// subscriptions.
func TestDeadGroup(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "other")
		alive := x.attach("t", "other", "m")
		x.subscribe("t", "g", heartbeatConfig(2, 10))
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 3)
		x.ack(alive, x.want(alive, numbers(0, 3)))
		testkit.Advance(time.Minute)
		if st := x.state("t", "g"); st != storage.Active {
			t.Fatal("dead though a member is attached: ", st)
		}
		s.End(serving.Broken)
		testkit.Advance(9 * time.Second)
		if st := x.state("t", "g"); st != storage.Active {
			t.Error("dead before its timeout")
		}
		testkit.Advance(5 * time.Second)
		if st := x.state("t", "g"); st != storage.Dead {
			t.Error(st)
		}
		if n := x.Counters().Released.Load(); n != 3 {
			t.Errorf("%d released", n)
		}
		if x.logs.count("to=dead") != 1 {
			t.Error("no line says so")
		}
		st := x.status("t", "0-1")
		if len(st.GetRequired()) != 1 || st.GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
			t.Error(st)
		}
	})
}

// HQ-C07, HQ-L06, HQ-M3, HQ-M7, HQ-N5, HQ-X2: a heartbeat revives a dead group, which gets
// what it missed, once, though many members come back at once.
func TestResurrection(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		c := heartbeatConfig(2, 10)
		c.MaxBackfillMessages = 50
		x.subscribe("t", "g", c)
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 5)
		had := x.want(s, numbers(0, 5))
		testkit.Advance(time.Second)
		s.End(serving.Broken)
		testkit.Advance(20 * time.Second)
		x.publish("t", 5, 100)
		if st := x.status("t", "0-50"); len(st.GetRequired()) != 0 {
			t.Error(st)
		}
		if _, err := s.Ack(t.Context(), at(had)); err == nil {
			t.Error("a session that has ended acknowledges")
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if r, err := x.Heartbeat(t.Context(), op, "t", "g"); err != nil || r.GetState() != storage.Active {
					t.Error(r, err)
				}
			})
		}
		all.Wait()
		s = x.attach("t", "g", "m")
		x.ack(s, x.want(s, numbers(55, 50)))
		if n := x.logs.count("from=dead to=active"); n != 1 {
			t.Errorf("revived %d times", n)
		}
	})
}

// HQ-J09, HQ-M7, HQ-N5: what a group gets at most of what was there before it, or of what it
// missed, are messages of all partitions together, however few some of them have.
func TestBoundOfAllPartitions(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 4})
		x.subscribe("t", "holder", nil)
		publish := func(key string, n int) {
			list := messages(0, n)
			for _, m := range list {
				m.Key = key
			}
			_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: list})
			testkit.Must(t, err)
		}
		for i, n := range []int{150, 150, 60, 37, 3} { // of a key each
			publish(fmt.Sprint("key ", i), n)
		}
		count := func(group string) int {
			s := x.attach("t", group, "m")
			list := x.receive(s)
			x.ack(s, list)
			s.End(serving.Broken)
			return len(list)
		}
		for limit, want := range map[int64]int{100: 100, 1: 1, 399: 399, 400: 400, 1000: 400, -1: 400} {
			for _, held := range []bool{true, false} {
				c := &topicv1.SubscriptionConfig{Backfill: held, MaxBackfillMessages: limit,
					Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}}
				name := fmt.Sprintf("at-most-%d-%t", limit, held)
				x.subscribe("t", name, c)
				if n := count(name); n != want {
					t.Errorf("%s: %d messages, want %d", name, n, want)
				}
			}
		}
		mortal := heartbeatConfig(2, 10)
		mortal.MaxBackfillMessages = 100
		x.subscribe("t", "mortal", mortal)
		publish("key 0", 500) // acknowledged: it has not missed them
		if n := count("mortal"); n != 500 {
			t.Fatalf("%d messages before it dies", n)
		}
		testkit.Advance(20 * time.Second)
		if s := x.state("t", "mortal"); s != storage.Dead {
			t.Fatalf("the group is %v", s)
		}
		for i, n := range []int{0, 150, 60, 37, 3} {
			publish(fmt.Sprint("key ", i), max(n, 1))
		}
		if n := count("mortal"); n != 100 {
			t.Errorf("revived with %d messages, want 100", n)
		}
	})
}

// HQ-C08, HQ-C09, HQ-C10, HQ-C21, HQ-C22, HQ-C23: a subscription can be cancelled in each
// state, and holds nothing from then on; the last member may do so as it leaves.
func TestCancel(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "active", "paused", "left")
		x.subscribe("t", "dead", heartbeatConfig(1, 5))
		if _, err := x.Pause(t.Context(), op, "t", "paused"); err != nil {
			t.Fatal(err)
		}
		testkit.Advance(10 * time.Second)
		x.publish("t", 0, 4)
		one, two := x.attach("t", "left", "1"), x.attach("t", "left", "2")
		if err := one.Detach(t.Context(), true); err != nil || x.state("t", "left") != storage.Active {
			t.Error("one of two members cancels: ", err)
		}
		if err := two.Detach(t.Context(), true); err != nil || x.state("t", "left") != storage.Cancelled {
			t.Error("the last member does not cancel: ", err)
		}
		s := x.attach("t", "active", "m")
		for _, g := range []string{"active", "paused", "dead"} {
			before := x.subscription("t", g)
			testkit.Advance(time.Second)
			d, err := x.Cancel(t.Context(), op, "t", g)
			if err != nil || d.GetState() != storage.Cancelled ||
				!d.GetLastActiveAt().AsTime().After(before.GetLastActiveAt().AsTime()) {
				t.Error(d, err)
			}
		}
		for {
			e, err := s.Receive(t.Context(), 10)
			if err != nil || e.Gone != "" && e.Gone != "SUBSCRIPTION_GONE" {
				t.Fatal(e, err)
			}
			if e.Gone != "" {
				break
			}
		}
		if st := x.status("t", "0-1"); len(st.GetRequired()) != 0 {
			t.Error(st)
		}
		d, err := x.Topic(t.Context(), op, "t")
		if err != nil || d.GetActiveSubscriptions() != 0 {
			t.Error(d, err)
		}
	})
}

// HQ-C11, HQ-C14: what was cancelled is forgotten after 30 days; then there is nothing to
// change.
func TestCancelledIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		if _, err := x.Cancel(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		x.restart()
		testkit.Advance(time.Hour)
		x.state("t", "g")
		x.later(31 * 24 * time.Hour)
		for _, f := range []func(context.Context, Caller, string, string) (*topicv1.Subscription, error){
			x.Pause, x.Resume, x.Cancel, x.Subscription,
		} {
			_, err := f(t.Context(), op, "t", "g")
			refusedAs(t, err, refusal.SubscriptionNotFound)
		}
	})
}

// HQ-C16: transitions that many ask for at once follow one another, each legal where it
// is.
func TestTransitionsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		version := x.subscription("t", "g").GetEtag()
		var all sync.WaitGroup
		for i := range 99 {
			all.Go(func() {
				f := x.Pause
				if i%2 == 0 {
					f = x.Resume
				}
				if i == 98 {
					f = x.Cancel
				}
				if _, err := f(t.Context(), op, "t", "g"); err != nil {
					refusedAs(t, err, refusal.InvalidTransition)
				}
			})
		}
		all.Wait()
		if st := x.state("t", "g"); st != storage.Cancelled {
			t.Error(st)
		}
		var from, to int
		fmt.Sscan(version, &from)
		fmt.Sscan(x.subscription("t", "g").GetEtag(), &to)
		if n := x.logs.count("subscription changed"); n != to-from {
			t.Errorf("%d changes are logged and %d versions were written", n, to-from)
		}
	})
}

// HQ-L13, HQ-M2: a group whose members come back again and again and acknowledge nothing
// is flapping, until they do.
func TestFlapping(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		x.publish("t", 0, 1)
		for n := range 4 {
			if f := x.subscription("t", "g").GetFlapping(); f != (n >= 3) {
				t.Errorf("after %d times: %v", n, f)
			}
			s := x.attach("t", "g", "m")
			testkit.Advance(30 * time.Second)
			s.End(serving.Broken)
		}
		x.restart() // the row has it by then
		if !x.subscription("t", "g").GetFlapping() {
			t.Error("forgotten")
		}
		x.publish("t", 1, 1)
		s := x.attach("t", "g", "m")
		testkit.Advance(time.Minute)
		x.ack(s, x.receive(s))
		testkit.Advance(time.Minute)
		if x.subscription("t", "g").GetFlapping() {
			t.Error("flapping though it acknowledges")
		}
	})
}

// HQ-L05, HQ-L14, HQ-L15, HQ-L21, HQ-L22: heartbeats of many members are one row of their
// group per interval, all due ones in one write, spread over the interval; a group lives
// while one member does.
func TestHeartbeatsAreBatched(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		var sessions []*Session
		for g := range 50 {
			name := fmt.Sprintf("g%d", g)
			x.subscribe("t", name, heartbeatConfig(60, 300))
			for m := range 10 {
				sessions = append(sessions, x.attach("t", name, fmt.Sprint(m)))
			}
		}
		due := map[time.Time]int{}
		for _, l := range x.engine.Topics.All() {
			for _, g := range l.Groups() {
				due[g.Heartbeats.Due().Truncate(10*time.Second)]++
			}
		}
		if len(due) < 5 {
			t.Errorf("heartbeats begin at %v", due)
		}
		before := x.Counters().HeartbeatWrites.Load()
		testkit.Advance(10 * time.Minute)
		if n := x.Counters().HeartbeatWrites.Load() - before; n > 500 || n < 10 {
			t.Errorf("%d writes in ten intervals", n)
		}
		for i, s := range sessions {
			if i%10 != 0 {
				s.End(serving.Broken)
			}
		}
		testkit.Advance(time.Hour)
		d := x.subscription("t", "g7")
		if d.GetState() != storage.Active || time.Since(d.GetLastHeartbeatAt().AsTime()) > time.Minute ||
			time.Since(d.GetLastActiveAt().AsTime()) > time.Minute {
			t.Error(d)
		}
	})
}

// HQ-L07: a heartbeat for a group that does not exist is refused.
func TestHeartbeatOfNothing(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		_, err := x.Heartbeat(t.Context(), op, "t", "g")
		refusedAs(t, err, refusal.SubscriptionNotFound)
		_, err = x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: "g"}, false)
		refusedAs(t, err, refusal.SubscriptionNotFound)
	})
}

// A group whose members are attached is not marked dead after the process has stood still;
// nor is one that had no members, before it had the time to be heard of again.
func TestPauseOfTheProcessKillsNobody(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "attached", "away")
		s := x.attach("t", "attached", "m")
		testkit.Advance(3 * time.Minute)
		x.ahead.Add(int64(10 * time.Minute))
		x.jobs.GroupActive() // detection comes before members are counted
		synctest.Wait()
		testkit.Advance(2 * time.Second)
		for _, g := range []string{"attached", "away"} {
			if state := x.state("t", g); state != storage.Active {
				t.Errorf("%s is %s", g, state)
			}
		}
		testkit.Advance(10 * time.Minute)
		if a, b := x.state("t", "attached"), x.state("t", "away"); a != storage.Active || b != storage.Dead {
			t.Error(a, b)
		}
		s.End(serving.Broken)
	})
}

// A group that is to be marked dead has a member meanwhile: it is not. One that was marked
// while a member came lives again.
func TestMembersKeepTheirGroupAlive(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		l, err := x.engine.Topics.Open(t.Context(), x.engine.Catalog.Topic("t"))
		if err != nil {
			t.Fatal(err)
		}
		s := x.attach("t", "g", "m")
		_, err = x.engine.Subscriptions.Transition(t.Context(), l, "g", storage.Expire, "test")
		refusedAs(t, err, refusal.InvalidTransition)
		s.End(serving.Broken)
		if _, err = x.engine.Subscriptions.Transition(t.Context(), l, "g", storage.Expire, "test"); err != nil {
			t.Fatal(err)
		}
		in, err := l.Group("g").Attach(serving.SessionOptions{ID: "late", Member: "m"})
		if err != nil {
			t.Fatal(err)
		}
		testkit.Advance(2 * time.Minute)
		if state := x.state("t", "g"); state != storage.Active {
			t.Error(state)
		}
		in.End(serving.Broken)
	})
}
