package topic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/operations"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// broken fails the plans of cursors while it is on.
type broken struct {
	store.Store
	on     *atomic.Bool
	writes *atomic.Int64
}

func (b broken) Transact(ctx context.Context, p store.Plan) error {
	if p.Writes[0].Key.Table == store.Subscriptions {
		b.writes.Add(1)
		if b.on.Load() {
			return store.ErrUnavailable
		}
	}
	return b.Store.Transact(ctx, p)
}

// breakable lets a test break the writes of cursors, and count them.
func breakable(x *fixture) (on *atomic.Bool, writes *atomic.Int64) {
	x.t.Helper()
	on, writes = &atomic.Bool{}, &atomic.Int64{}
	x.wrap = func(s store.Store) store.Store { return broken{s, on, writes} }
	x.restart()
	return on, writes
}

// HQ-D08, HQ-D18: in REFERENCE_COUNTING an acknowledgement is answered when it is stored,
// and not before; a write that fails is repeated.
func TestAckIsDurable(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on, _ := breakable(x)
		x.groups("t", "a", "b")
		s := x.attach("t", "a", "m")
		x.publish("t", 0, 4)
		had := x.want(s, numbers(0, 4))
		if r := x.ack(s, had[:1]); len(r) > 0 {
			t.Error(r)
		}
		on.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if _, err := s.Ack(ctx, at(had[1:2])); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("answered though it cannot be stored: ", err)
		}
		cancel()
		on.Store(false)
		if r := x.ack(s, had[1:2]); len(r) > 0 { // repeated
			t.Error(r)
		}
		x.restart()
		x.want(x.attach("t", "a", "m"), numbers(2, 2))
	})
}

// HQ-E01, HQ-E02: in OFFSET_WATERMARK an acknowledgement is answered at once, and the
// position is stored each second or thousand acknowledgements, however many there are.
func TestWatermarkIsFlushed(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on, writes := breakable(x)
		x.configure("t", &topicv1.TopicConfig{
			Semantics:      topicv1.Semantics_SEMANTICS_PUB_SUB,
			CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK,
		})
		x.subscribe("t", "g", nil)
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 900)
		had := x.want(s, numbers(0, 900))
		before := writes.Load()
		for i := range had {
			x.ack(s, had[i:i+1])
		}
		if n := writes.Load() - before; n > 1 { // a second may have begun
			t.Errorf("%d writes at once", n)
		}
		testkit.Advance(1100 * time.Millisecond)
		if n := writes.Load() - before; n < 1 || n > 2 {
			t.Errorf("%d writes for 900 acknowledgements", n)
		}
		on.Store(true)
		x.publish("t", 900, 5)
		x.ack(s, x.want(s, numbers(900, 5)))
		testkit.Advance(time.Minute)
		on.Store(false)
		testkit.Advance(10 * time.Second)
		x.restart()
		x.want(x.attach("t", "g", "m"), "")
	})
}

// HQ-D19: acknowledgements that cannot be stored are bounded: what is too much is refused.
func TestAcksAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on, _ := breakable(x)
		x.groups("t", "g")
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 2)
		had := x.want(s, numbers(0, 2))
		on.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		var waiting, refused atomic.Int64
		done := make(chan struct{})
		const callers = 10_100
		for range callers {
			go func() {
				_, err := s.Ack(ctx, at(had))
				if errors.Is(err, &refusal.Error{Reason: refusal.Overloaded}) {
					refused.Add(1)
				} else {
					waiting.Add(1)
				}
				done <- struct{}{}
			}()
		}
		testkit.Advance(time.Second)
		if n := refused.Load(); n != callers-10_000 {
			t.Errorf("%d are refused", n)
		}
		on.Store(false)
		testkit.Advance(10 * time.Second)
		cancel()
		for range callers {
			<-done
		}
		x.restart()
		x.want(x.attach("t", "g", "m"), "")
	})
}

// A lease that ends delivers the message to somebody else, and notifies who had it; what it
// acknowledges then is refused.
func TestLeaseEnds(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{Lease: seconds(10)}})
		one, err := x.Attach(t.Context(), op, &topicv1.Attach{
			Topic: "t", Group: "g", Member: "1", Credits: &topicv1.Credits{Messages: 3},
		}, false)
		if err != nil {
			t.Fatal(err)
		}
		x.publish("t", 0, 3)
		had := x.want(one, numbers(0, 3))
		two := x.attach("t", "g", "2")
		testkit.Advance(5 * time.Second)
		r, err := one.Extend(t.Context(), &topicv1.ExtendSet{Positions: at(had[:1]).GetPositions()})
		if err != nil || len(r) > 0 {
			t.Error(r, err)
		}
		testkit.Advance(6 * time.Second)
		lost := 0
		for ctx, cancel := context.WithTimeout(t.Context(), time.Second/2); ; {
			e, err := one.Receive(ctx, 10)
			if err != nil {
				cancel()
				break
			}
			for _, p := range e.LeaseLost {
				lost += int(p.GetCount())
			}
		}
		if lost != 2 {
			t.Errorf("%d messages are named as lost", lost)
		}
		testkit.Advance(2 * time.Second)
		again := x.receive(two)
		if len(again) != 1 || again[0].attempt != 2 { // alone, as one of the two may have stopped the member
			t.Errorf("%v", again)
		}
		r = x.ack(one, had)
		refused := int64(0)
		for _, r := range r {
			if r.GetOutcome() != topicv1.Outcome_OUTCOME_LEASE_LOST {
				t.Error(r)
			}
			refused += r.GetPositions().GetCount()
		}
		if refused != 2 {
			t.Errorf("%d refused", refused)
		}
		x.ack(two, again)
		if again = append(x.receive(one), x.receive(two)...); len(again) != 1 || again[0].attempt != 1 {
			t.Errorf("%v", again)
		}
	})
}

// HQ-C19: members of a queue need no subscription, and share its messages.
func TestQueue(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("q", nil)
		one, two := x.attach("q", "", "1"), x.attach("q", "$queue", "2")
		for i := range 100 {
			x.publish("q", i, 1)
		}
		a, b := x.receive(one), x.receive(two)
		if len(a)+len(b) != 100 {
			t.Errorf("%d and %d messages", len(a), len(b))
		}
		_, err := x.CreateSubscription(t.Context(), op, &topicv1.CreateSubscriptionRequest{Topic: "q", Group: "g"})
		refusedAs(t, err, refusal.InvalidArgument)
		_, err = x.Attach(t.Context(), op, &topicv1.Attach{Topic: "q", Member: "1"}, false)
		refusedAs(t, err, refusal.MemberExists)
		x.ack(one, a)
		if err := one.Detach(t.Context(), true); err != nil { // a queue has no end
			t.Fatal(err)
		}
		two.End(serving.Broken)
		testkit.Advance(time.Hour)
		x.want(x.attach("q", "", "3"), payloads(b))
	})
}

// What fails too often is stored in a topic of its own, with why, before it counts as
// acknowledged; a member of the group can subscribe to that.
func TestDeadLetters(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{
			Retry: &topicv1.RetryPolicy{MaxAttempts: 2, InitialBackoff: seconds(1)},
		})
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 3)
		for range 2 {
			had := x.receive(s)
			for _, g := range had {
				if g.payload != "1" {
					x.ack(s, []got{g})
					continue
				}
				back := &topicv1.NackSet{Positions: at([]got{g}).GetPositions(), Reason: "no"}
				if _, err := s.Nack(t.Context(), back); err != nil {
					t.Fatal(err)
				}
			}
			testkit.Advance(3 * time.Second)
		}
		if st := x.status("t", "0-1"); st.GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
			t.Error(st)
		}
		x.subscribe("t.dlq", "undertaker", earliest())
		had := x.want(x.attach("t.dlq", "undertaker", "m"), "1")
		for name, want := range map[string]string{
			"parley-topic": "t", "parley-message-id": "0-1", "parley-group": "g", "parley-attempts": "2", "parley-error": "no",
		} {
			if v := had[0].message.GetHeaders()[name]; v != want {
				t.Errorf("%s is %q, not %q", name, v, want)
			}
		}
		_, err := x.Configure(t.Context(), op, &topicv1.ConfigureTopicRequest{Topic: "t.dlq"})
		refusedAs(t, err, refusal.InvalidArgument)
		_, err = x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t.dlq", Messages: messages(0, 1)})
		refusedAs(t, err, refusal.TopicForbidden)
		x.restart()
		x.want(x.attach("t", "g", "m"), "")
	})
}

// A session that is polled takes what each poll asks for, and ends when it is not polled.
func TestPoll(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		x.publish("t", 0, 30)
		s, err := x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: "g"}, true)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			e, err := s.Receive(t.Context(), 10)
			if err != nil || payloads(read(t, e.Deliveries)) != numbers(10*i, 10) {
				t.Error(e, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := s.Receive(ctx, 10); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		x.publish("t", 30, 5)
		testkit.Advance(15 * time.Second) // within the lease
		if e, err := s.Receive(t.Context(), 10); err != nil || payloads(read(t, e.Deliveries)) != numbers(30, 5) {
			t.Error(e, err)
		}
		testkit.Advance(46 * time.Second)
		_, err = x.Session(op, s.ID())
		refusedAs(t, err, refusal.SessionGone)
		testkit.Advance(5 * time.Second)
		if n := len(x.work(x.attach("t", "g", "m"))); n != 35 {
			t.Errorf("%d messages are delivered again", n)
		}
	})
}

// What lies far behind is read again from the log, in order and once, beside what is new.
func TestCatchUp(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 3})
		x.subscribe("t", "late", nil)
		pad := strings.Repeat("x", 10_000)
		for i := range 200 {
			list := messages(10*i, 10)
			for n, m := range list {
				m.Key = fmt.Sprint(n)
				m.Type = pad
			}
			if _, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: list}); err != nil {
				t.Fatal(err)
			}
		}
		s, err := x.Attach(t.Context(), op, &topicv1.Attach{
			Topic: "t", Group: "late", RenewCredits: true, Credits: &topicv1.Credits{Messages: 100, Bytes: 1 << 20},
		}, false)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int32]int64{}
		total := 0
		for {
			had := x.receive(s)
			if len(had) == 0 {
				break
			}
			for _, g := range had {
				if g.position != seen[g.partition] {
					t.Fatalf("position %d after %d of partition %d", g.position, seen[g.partition]-1, g.partition)
				}
				seen[g.partition]++
			}
			total += len(had)
			x.ack(s, had)
		}
		if total != 2000 {
			t.Errorf("%d messages", total)
		}
	})
}

// HQ-D09: a thousand acknowledgements are one call, as positions, a range or bits.
func TestManyAcksInOneCall(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "positions", "range", "bits")
		x.publish("t", 0, 1000)
		for name, set := range map[string]func(list []got) *topicv1.AckSet{
			"positions": at,
			"range": func([]got) *topicv1.AckSet {
				return &topicv1.AckSet{Positions: []*topicv1.Positions{{Count: 1000}}}
			},
			"bits": func([]got) *topicv1.AckSet {
				bits := bytes.Repeat([]byte{0xff}, 125)
				return &topicv1.AckSet{Positions: []*topicv1.Positions{{Bitmap: bits}}}
			},
		} {
			if _, err := x.Seek(t.Context(), op, &topicv1.SeekSubscriptionRequest{
				Topic: "t", Group: name, To: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}},
			}); err != nil {
				t.Fatal(err)
			}
			s := x.attach("t", name, "m")
			r, err := s.Ack(t.Context(), set(x.want(s, numbers(0, 1000))))
			if err != nil || len(r) > 0 {
				t.Error(name, r, err)
			}
			if d := x.subscription("t", name).GetPartitions()[0]; d.GetFloor() != 1000 || d.GetPending() != 0 {
				t.Error(name, d)
			}
		}
	})
}

// HQ-L16, HQ-M9: while the store is away for an hour no group dies whose member is there,
// and none after it.
func TestStoreAway(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on := &atomic.Bool{}
		x.wrap = func(s store.Store) store.Store { return away{s, on} }
		x.restart()
		x.groups("t")
		for i := range 5 {
			x.subscribe("t", fmt.Sprint(i), heartbeatConfig(2, 10))
			x.attach("t", fmt.Sprint(i), "m")
		}
		on.Store(true)
		testkit.Advance(time.Hour)
		on.Store(false)
		testkit.Advance(time.Minute)
		for i := range 5 {
			if st := x.state("t", fmt.Sprint(i)); st != storage.Active {
				t.Error(st)
			}
		}
		if x.Counters().HeartbeatsFailed.Load() == 0 {
			t.Error("no heartbeat failed")
		}
	})
}

// away refuses all plans while it is on, after as long as a call may take.
type away struct {
	store.Store
	on *atomic.Bool
}

func (a away) Transact(ctx context.Context, p store.Plan) error {
	if a.on.Load() {
		<-ctx.Done()
		return store.ErrUnavailable
	}
	return a.Store.Transact(ctx, p)
}

// The largest backlog is that of the group which is furthest behind, stuck on one message as
// well as on all; one that has ended has none.
func TestLargestBacklog(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "a", "b")
		a, b := x.attach("t", "a", "m"), x.attach("t", "b", "m")
		testkit.Equal(t, "at first", x.LargestBacklog(), int64(0))
		x.publish("t", 0, 5)
		testkit.Equal(t, "published", x.LargestBacklog(), int64(5))
		x.ack(a, x.want(a, numbers(0, 5)))
		had := x.want(b, numbers(0, 5))
		x.ack(b, had[2:])
		testkit.Equal(t, "b is stuck on the second one", x.LargestBacklog(), int64(5))
		x.ack(b, had[:1])
		testkit.Equal(t, "b is stuck on the second one only", x.LargestBacklog(), int64(4))
		_, err := x.Cancel(t.Context(), op, "t", "b")
		testkit.Must(t, err)
		testkit.Equal(t, "b has ended", x.LargestBacklog(), int64(0))
	})
}

// What operators read of members and of dead letters is what the server says: a member's name has
// no control characters, and publishers set no header of dead letters.
func TestForgedNames(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		for _, name := range []string{"a\x00b", "a\nb", "\x7f", "a\u0085"} {
			_, err := x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: "g", Member: name}, false)
			refusedAs(t, err, refusal.InvalidArgument)
		}
		x.attach("t", "g", "Zoë's laptop ☕").End(serving.Broken)
		for _, header := range []string{operations.HeaderTopic, operations.HeaderMessage, operations.HeaderGroup,
			operations.HeaderAttempts, operations.HeaderError, operations.HeaderFirst, operations.HeaderRedriven} {
			list := messages(0, 2)
			list[1].Headers = map[string]string{"x": "y", header: "forged"}
			_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: list})
			refusedAs(t, err, refusal.InvalidArgument)
		}
		list := messages(0, 1)
		list[0].Headers = map[string]string{"x-parley-topic": "y"}
		_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: list})
		testkit.Must(t, err)
		if n := len(x.receive(x.attach("t", "g", "m"))); n != 1 {
			t.Errorf("%d messages are stored, not the one that was not refused", n)
		}
	})
}
