package topic

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// HQ-L08: no client says what time it is, and a server whose clock is five minutes off from
// the one before neither marks who lives nor spares who does not.
func TestClockOfAnotherServer(t *testing.T) {
	fields := (&topicv1.HeartbeatRequest{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if fields.Get(i).Message() != nil {
			t.Errorf("a heartbeat carries %s", fields.Get(i).FullName())
		}
	}
	for _, off := range []time.Duration{-5 * time.Minute, 5 * time.Minute} {
		bubble(t, func(t *testing.T, x *fixture) {
			x.groups("t")
			x.subscribe("t", "alive", heartbeatConfig(2, 10))
			x.subscribe("t", "gone", heartbeatConfig(2, 10))
			x.attach("t", "alive", "m")
			x.attach("t", "gone", "m")
			testkit.Advance(5 * time.Second)
			x.ahead.Store(int64(off))
			x.restart()
			x.attach("t", "alive", "m")
			testkit.Advance(8 * time.Second)
			if a, b := x.state("t", "alive"), x.state("t", "gone"); a != storage.Active || b != storage.Active {
				t.Errorf("%s: %s and %s within the timeout", off, a, b)
			}
			testkit.Advance(6 * time.Second)
			if a, b := x.state("t", "alive"), x.state("t", "gone"); a != storage.Active || b != storage.Dead {
				t.Errorf("%s: %s and %s after it", off, a, b)
			}
		})
	}
}

// HQ-M8, HQ-X6: a subscription that is cancelled while its consumer works holds nothing from then
// on; the consumer is notified, and what it had under way is refused.
func TestCancelWhileRunning(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g", "other")
		s, other := x.attach("t", "g", "m"), x.attach("t", "other", "m")
		x.publish("t", 0, 10)
		had := x.want(s, numbers(0, 10))
		x.ack(other, x.want(other, numbers(0, 10)))
		x.ack(s, had[:3])
		ending := make(chan Event, 1)
		go func() {
			e, _ := s.Receive(context.Background(), 10) // the event is what is checked
			ending <- e
		}()
		testkit.Advance(time.Second)
		if _, err := x.Cancel(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		if e := <-ending; e.Gone != "SUBSCRIPTION_GONE" {
			t.Error(e)
		}
		_, err := s.Ack(t.Context(), at(had[3:]))
		refusedAs(t, err, refusal.SessionGone)
		if n := x.Counters().Released.Load(); n != 7 {
			t.Errorf("%d messages are released", n)
		}
		if st := x.status("t", "0-5"); st.GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
			t.Error(st)
		}
		_, err = x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: "g"}, false)
		refusedAs(t, err, refusal.SubscriptionGone)
		x.later(25 * hour)
		if n := x.start0("t"); n != 10 {
			t.Errorf("trimmed to %d, not 10", n)
		}
	})
}

// HQ-N6: a dead group that wants nothing of what it missed comes back and moves to the end:
// it continues from now.
func TestRevivedFromNow(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", heartbeatConfig(2, 10))
		testkit.Advance(20 * time.Second)
		if st := x.state("t", "g"); st != storage.Dead {
			t.Fatal(st)
		}
		x.publish("t", 0, 20)
		if _, err := x.Heartbeat(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		r, err := x.Seek(t.Context(), op, &topicv1.SeekSubscriptionRequest{
			Topic: "t", Group: "g", To: &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}},
		})
		if err != nil || r.GetSeeks()[0].GetSkipped() != 20 {
			t.Error(r, err)
		}
		if st := x.status("t", "0-7"); len(st.GetAcknowledged()) == 0 && len(st.GetRequired()) != 0 {
			t.Error("it is still to receive what it missed: ", st)
		}
		s := x.attach("t", "g", "m")
		x.want(s, "")
		x.publish("t", 20, 2)
		x.want(s, numbers(20, 2))
	})
}

// cursorBytes are the rows of a topic's first partition: how many, and how large together.
func (x *fixture) cursorBytes(name string) (rows, size int) {
	x.t.Helper()
	pk := table.CursorPartition(int64(x.engine.Catalog.Topic(name).Number), 0)
	for row, err := range store.QueryAll(x.t.Context(), x.store, store.Query{
		Table: store.Subscriptions, PK: pk, Consistency: store.Strong,
	}) {
		if err != nil {
			x.t.Fatal(err)
		}
		rows++
		size += row.Item.Size()
	}
	return rows, size
}

// HQ-D21: what is stored of acknowledgements goes with the messages.
func TestAcknowledgementsGoWithTheMessages(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{
			Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, ZombieSubscriptionTtl: durationpb.New(365 * 24 * hour),
		})
		for _, g := range []string{"a", "b", "c"} {
			x.subscribe("t", g, nil)
		}
		_, empty := x.cursorBytes("t")
		for i := range 10 {
			x.publish("t", 100*i, 100)
		}
		for n, g := range []string{"a", "b", "c"} {
			s := x.attach("t", g, "m")
			var some []got
			for i, m := range x.want(s, numbers(0, 1000)) {
				if i%(n+2) == 0 {
					some = append(some, m)
				}
			}
			x.ack(s, some)
			s.End(serving.Broken)
		}
		if _, size := x.cursorBytes("t"); size < empty+1000 {
			t.Fatalf("%d bytes, %d without messages: nothing is to go", size, empty)
		}
		x.later(31 * 24 * hour)
		if n := x.start0("t"); n != 1000 {
			t.Fatalf("trimmed to %d", n)
		}
		testkit.Advance(2 * time.Second)
		if rows, size := x.cursorBytes("t"); rows > 4 || size > empty+200 {
			t.Errorf("%d rows of %d bytes remain, %d without messages", rows, size, empty)
		}
	})
}

// plans counts all plans.
type plans struct {
	store.Store
	n *atomic.Int64
}

func (p plans) Transact(ctx context.Context, plan store.Plan) error {
	p.n.Add(1)
	return p.Store.Transact(ctx, plan)
}

// HQ-E13: a topic of which nothing can go costs the removal no write.
func TestNothingToTrim(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		n := &atomic.Int64{}
		x.wrap = func(s store.Store) store.Store { return plans{s, n} }
		x.restart()
		x.groups("empty", "g")
		x.groups("held", "g")
		x.publish("held", 0, 10)
		testkit.Advance(2 * time.Second)
		before := n.Load()
		x.later(25 * hour)
		if d := n.Load() - before; d != 0 {
			t.Errorf("%d writes", d)
		}
		if x.audit.count("server Trim") != 0 {
			t.Error("a removal is recorded")
		}
		s := x.attach("held", "g", "m")
		x.ack(s, x.want(s, numbers(0, 10)))
		x.later(25 * hour)
		if x.audit.count("server Trim held") != 1 {
			t.Error("what can go stays")
		}
	})
}

// HQ-E19: the positions of a hundred groups are a row each, and a few writes per second,
// however often they acknowledge.
func TestHundredGroups(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		_, writes := breakable(x)
		x.configure("t", &topicv1.TopicConfig{
			Semantics:      topicv1.Semantics_SEMANTICS_PUB_SUB,
			CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK,
		})
		type consumer struct {
			s   *Session
			had []got
		}
		var all []consumer
		for g := range 100 {
			x.subscribe("t", fmt.Sprint("g", g), &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{Lease: seconds(600)}})
			all = append(all, consumer{s: x.attach("t", fmt.Sprint("g", g), "m")})
		}
		x.publish("t", 0, 9)
		for i := range all {
			all[i].had = x.want(all[i].s, numbers(0, 9))
		}
		testkit.Advance(2 * time.Second)
		before := writes.Load()
		for i := range 9 {
			for _, c := range all {
				x.ack(c.s, c.had[i:i+1])
			}
		}
		testkit.Advance(1100 * time.Millisecond)
		if n := writes.Load() - before; n < 1 || n > 4 {
			t.Errorf("%d writes for 900 acknowledgements of 100 groups", n)
		}
		x.restart()
		for g := range 100 {
			if d := x.subscription("t", fmt.Sprint("g", g)).GetPartitions()[0]; d.GetFloor() != 9 {
				t.Fatal(d)
			}
		}
	})
}

// HQ-F05: a queue costs as many writes beside a topic of sixteen groups as alone.
func TestQueueBesideGroups(t *testing.T) {
	var counts [2]int64
	for i, groups := range []int{0, 16} {
		bubble(t, func(t *testing.T, x *fixture) {
			n := &atomic.Int64{}
			x.wrap = func(s store.Store) store.Store { return plans{s, n} }
			x.restart()
			x.configure("q", nil)
			x.groups("t")
			for g := range groups {
				x.subscribe("t", fmt.Sprint("g", g), nil)
				x.attach("t", fmt.Sprint("g", g), "m")
			}
			x.publish("t", 0, 10)
			s := x.attach("q", "", "m")
			testkit.Advance(2 * time.Minute)
			before := n.Load()
			for m := range 50 {
				x.publish("q", m, 1)
				e, err := s.Receive(t.Context(), 10)
				if err != nil {
					t.Fatal(err)
				}
				x.ack(s, read(t, e.Deliveries))
			}
			counts[i] = n.Load() - before
		})
	}
	if counts[0] == 0 || counts[0] != counts[1] {
		t.Errorf("%d writes alone, %d beside groups", counts[0], counts[1])
	}
}

// HQ-J10: of groups that come late at the same moment each gets all of what is kept.
func TestManyComeLate(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "early")
		x.publish("t", 0, 100)
		var all sync.WaitGroup
		for g := range 8 {
			all.Go(func() {
				name := fmt.Sprint("late", g)
				_, err := x.CreateSubscription(t.Context(), op, &topicv1.CreateSubscriptionRequest{
					Topic: "t", Group: name, Config: earliest(),
				})
				if err != nil {
					t.Error(err)
					return
				}
				s := x.attach("t", name, "m")
				had := x.receive(s)
				if p := payloads(had); p != numbers(0, 100) {
					t.Errorf("%s received %q", name, p)
				}
				x.ack(s, had)
			})
		}
		all.Wait()
		early := x.attach("t", "early", "m")
		x.ack(early, x.want(early, numbers(0, 100)))
		st := x.status("t", "0-50")
		if len(st.GetRequired()) != 9 || st.GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
			t.Error(st)
		}
	})
}

// Many who use a topic first at the same time open it once.
func TestOpenedOnce(t *testing.T) {
	unbubbled(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		x.restart()
		var all sync.WaitGroup
		var opened sync.Map
		changing := x.engine.Catalog.Topic("t").Changing()
		for range 50 {
			all.Go(func() {
				l, err := x.engine.Topics.Open(t.Context(), x.engine.Catalog.Topic("t"))
				if err != nil {
					t.Error(err)
				}
				opened.Store(l, true)
			})
		}
		time.Sleep(50 * time.Millisecond) // most of them wait for the lock by then
		changing.End()
		all.Wait()
		n := 0
		opened.Range(func(l, _ any) bool {
			n++
			if l.(*serving.OpenTopic) != x.engine.Topics.Opened(x.engine.Catalog.Topic("t").Number) {
				t.Error("one that is open is not in use")
			}
			return true
		})
		if n != 1 {
			t.Errorf("opened %d times", n)
		}
	})
}

// A session that ends while it is polled answers the poll, and what it got goes to
// another member at once.
func TestEndsWhileItIsPolled(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		s, err := x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: "g", Member: "m"}, true)
		if err != nil {
			t.Fatal(err)
		}
		x.publish("t", 0, 5)
		if e, err := s.Receive(t.Context(), 5); err != nil || payloads(read(t, e.Deliveries)) != numbers(0, 5) {
			t.Fatal(e, err)
		}
		polled := make(chan Event, 1)
		go func() {
			e, _ := s.Receive(context.Background(), 5) // the event is what is checked
			polled <- e
		}()
		testkit.Advance(time.Second)
		s.End(serving.Broken)
		if e := <-polled; e.Gone != serving.Broken {
			t.Error(e)
		}
		x.publish("t", 5, 1)
		testkit.Advance(2 * time.Second)
		again := x.work(x.attach("t", "g", "m"))
		if len(again) != 6 {
			t.Errorf("%q", payloads(again))
		}
	})
}
