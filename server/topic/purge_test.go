package topic

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// purge removes messages of the topic t, and returns what was removed of each partition, and what groups
// lose.
func (x *fixture) purge(before *topicv1.Position, partitions ...int32) string {
	x.t.Helper()
	r := &topicv1.PurgeMessagesRequest{Topic: "t", Before: before, Partitions: partitions, DryRun: true}
	forecast, err := x.Purge(x.t.Context(), op, r)
	testkit.Must(x.t, err)
	r.DryRun = false
	did, err := x.Purge(x.t.Context(), op, r)
	testkit.Must(x.t, err)
	if a, b := purgeOf(forecast), purgeOf(did); a != b {
		x.t.Errorf("the forecast was %s, and it did %s", a, b)
	}
	return purgeOf(did)
}

func purgeOf(r *topicv1.PurgeMessagesResponse) string {
	var list []string
	for _, p := range r.GetPurges() {
		list = append(list, fmt.Sprintf("%d:%d-%d", p.GetPartition(), p.GetFrom(), p.GetTo()))
	}
	for _, g := range r.GetGroups() {
		list = append(list, fmt.Sprintf("%s:%d", g.GetGroup(), g.GetMessages()))
	}
	if int(r.GetGroupCount()) != len(r.GetGroups()) {
		list = append(list, fmt.Sprintf("of %d", r.GetGroupCount()))
	}
	return strings.Join(list, " ")
}

// purgeRow reports whether a purge of the topic t is stored that the log has not done.
func (x *fixture) purgeRow() bool {
	x.t.Helper()
	row, err := x.store.Get(x.t.Context(), table.TopicPurgeKey("t"), store.Strong)
	testkit.Must(x.t, err)
	return row.Size() > 0
}

// hears waits for the loss of a lease, and returns how many messages it names.
func (x *fixture) hears(s *Session) (lost int64) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Second)
	defer cancel()
	e, err := s.Receive(ctx, 1000)
	testkit.Must(x.t, err)
	for _, p := range e.LeaseLost {
		lost += p.GetCount()
	}
	return lost
}

// A purge takes messages from all groups in every state: a lease, which ends and of which the
// member hears; a pause; nothing because they are dead. Their ledgers count what was due as forced. Neither
// the message nor a part of its batch comes back: not to a reader, not to a group that begins or goes back,
// not after a restart. A late acknowledgement does nothing and is not refused.
func TestPurge(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "paused")
		x.subscribe("t", "leased", &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{Lease: seconds(120)}})
		x.subscribe("t", "dead", heartbeatConfig(2, 10))
		s := x.attach("t", "leased", "m")
		for i := range 4 {
			x.publish("t", 3*i, 3) // batches 0-2, 3-5, 6-8, 9-11
		}
		had := x.want(s, numbers(0, 12))
		x.ack(s, had[:2])
		_, err := x.Pause(t.Context(), op, "t", "paused")
		testkit.Must(t, err)
		testkit.Advance(30 * time.Second)
		if got := x.state("t", "dead"); got != storage.Dead {
			t.Fatal(got)
		}
		if got := x.purge(position("0-5")); got != "0:0-5 dead:5 paused:5 leased:3" {
			t.Error(got)
		}
		if n := x.hears(s); n != 3 {
			t.Errorf("it hears of %d lost leases", n)
		}
		if refused := x.ack(s, had[:6]); len(refused) > 0 {
			t.Errorf("refused %v", refused)
		}
		if got := x.purge(position("0-5")); got != "0:5-5" { // again
			t.Error(got)
		}
		const result = "ok 5 messages removed, 3 groups lose 13"
		if x.audit.count("operator PurgeMessages") != 2 || x.audit.count(result) != 1 {
			t.Error(x.audit.text.String())
		}
		for _, again := range []bool{false, true} {
			if again {
				x.restart()
			}
			for group, want := range map[string]string{
				"leased": "true [0 0 0 0 3 0]", "paused": "true [0 0 0 0 5 0]", "dead": "true [0 0 0 0 5 0]",
			} {
				if got := x.released(group); got != want {
					t.Errorf("%s: %s", group, got)
				}
			}
			if ids, _ := x.browse(&topicv1.BrowseMessagesRequest{Topic: "t"}); ids != "0-5 0-6 0-7 0-8 0-9 0-10 0-11" {
				t.Errorf("it has %s", ids)
			}
			_, err := x.Message(t.Context(), op, "t", "0-4")
			refusedAs(t, err, refusal.MessageNotFound)
			if n := x.start0("t"); n != 5 {
				t.Errorf("it begins with %d", n)
			}
			x.subscribe("t", fmt.Sprintf("late-%t", again), earliest())
			x.want(x.attach("t", fmt.Sprintf("late-%t", again), "m"), numbers(5, 7))
		}
		_, err = x.Seek(t.Context(), op,
			&topicv1.SeekSubscriptionRequest{Topic: "t", Group: "leased", To: earliest().GetStart()})
		testkit.Must(t, err)
		x.want(x.attach("t", "leased", "m"), numbers(5, 7))
		x.want(x.attach("t", "dead", "m"), numbers(5, 7))
	})
}

// Once the log has removed all that was purged, nothing of the purge is stored. Until then that is a part of
// a batch, which goes as a whole.
func TestPurgeIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		x.publish("t", 0, 3)
		x.publish("t", 3, 3)
		x.purge(position("0-3"))
		if x.purgeRow() {
			t.Error("a purge that is done is stored")
		}
		x.purge(position("0-5"))
		if !x.purgeRow() {
			t.Error("a restart would show a part of a batch")
		}
		x.purge(latest())
		if x.purgeRow() || x.start0("t") != 6 {
			t.Errorf("begins with %d", x.start0("t"))
		}
		x.publish("t", 6, 3)
		x.purge(position("0-7"))
		x.work(x.attach("t", "g", "m"))
		x.later(25 * hour)
		if x.purgeRow() || x.start0("t") != 9 {
			t.Errorf("begins with %d after a trim", x.start0("t"))
		}
		testkit.Must(t, x.Delete(t.Context(), op, "t"))
	})
}

// What a purge is asked for has to make sense. It names partitions, a position or a time, and a message's id
// is for its own partition only.
func TestPurgePositions(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 3})
		x.subscribe("t", "g", nil)
		for range 2 {
			for n := range int32(3) {
				x.keyed(0, 2, keyOf(n, 3))
			}
			x.ahead.Add(int64(hour))
		}
		x.configure("chats", &topicv1.TopicConfig{})
		for want, list := range map[refusal.Reason][]*topicv1.PurgeMessagesRequest{
			refusal.InvalidArgument: {
				{}, {Before: &topicv1.Position{}}, {Before: position("0-1"), Partitions: []int32{1}},
				{Before: position("0-1"), Partitions: []int32{0, 1}}, {Before: position("0-99999999999999999999")},
			},
			refusal.PositionOutOfRange: {
				{Before: position("0-5")}, {Before: position("3-0")}, {Before: latest(), Partitions: []int32{3}},
			},
			refusal.TopicNotFound: {{Topic: "none", Before: latest()}},
		} {
			for _, r := range list {
				if r.GetTopic() == "" {
					r.Topic = "t"
				}
				_, err := x.Purge(t.Context(), op, r)
				refusedAs(t, err, want)
			}
		}
		old := &topicv1.Position{At: &topicv1.Position_Time{Time: timestamppb.New(x.engine.Clock().Add(-3 * hour / 2))}}
		for _, c := range []struct{ got, want string }{
			{x.purge(earliest().GetStart()), "0:0-0 1:0-0 2:0-0"},
			{x.purge(position("1-1")), "1:0-1 g:1"},
			{x.purge(old, 0, 1), "0:0-2 1:1-2 g:3"},
			{x.purge(old), "0:2-2 1:2-2 2:0-2 g:2"},
			{x.purge(latest(), 2), "2:2-4 g:2"},
			{x.purge(latest()), "0:2-4 1:2-4 2:4-4 g:4"},
		} {
			if c.got != c.want {
				t.Errorf("%s, not %s", c.got, c.want)
			}
		}
		x.wantReleased("in the end", "true [0 0 0 0 12 0]")
	})
}

// A purge takes what waits as well: for a retry, for a key that is parked, and dead letters that are not
// stored yet. What is behind proceeds, in order of key. Dead letters themselves are not purged.
func TestPurgeOfWhatWaits(t *testing.T) {
	for _, exhausted := range []topicv1.Exhausted{
		topicv1.Exhausted_EXHAUSTED_PARK_KEY, topicv1.Exhausted_EXHAUSTED_DEAD_LETTER,
	} {
		for _, queue := range []bool{false, true} {
			bubble(t, func(t *testing.T, x *fixture) {
				group, c := "g", &topicv1.SubscriptionConfig{
					Ordering: topicv1.Ordering_ORDERING_KEY, Exhausted: exhausted, Retry: &topicv1.RetryPolicy{MaxAttempts: 2},
				}
				x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB})
				if queue {
					group = storage.QueueGroup
					testkit.Must(t, x.semantics("t", topicv1.Semantics_SEMANTICS_QUEUE))
					_, err := x.update(group, c, "ordering", "exhausted", "retry.max_attempts")
					testkit.Must(t, err)
				} else {
					x.subscribe("t", group, c)
				}
				s := x.attach("t", group, "m")
				x.keyed(0, 2, "exhausted")
				x.keyed(2, 2, "delayed")
				x.keyed(4, 2, "leased")
				first := x.want(s, "0 2 4")
				x.fails(s, first[:1], "no")
				testkit.Advance(2 * time.Second)
				x.fails(s, x.want(s, "0"), "no") // for good; with dead letters 1 follows
				if exhausted == topicv1.Exhausted_EXHAUSTED_DEAD_LETTER {
					x.ack(s, x.want(s, "1"))
				}
				_, err := s.Nack(t.Context(), &topicv1.NackSet{Positions: at(first[1:2]).GetPositions(), Delay: seconds(600)})
				testkit.Must(t, err)
				want := int64(6)
				if exhausted == topicv1.Exhausted_EXHAUSTED_DEAD_LETTER {
					want = 4
				}
				if got := x.purge(latest()); got != fmt.Sprintf("0:0-6 %s:%d", group, want) {
					t.Error(got)
				}
				x.keyed(6, 3, "exhausted")
				for i := range 3 {
					x.keyed(9+i, 1, "leased")
				}
				var order []string
				for range 3 {
					had := x.receive(s)
					order = append(order, payloads(had))
					x.ack(s, had)
				}
				if got := strings.Join(order, ", "); got != "6 9, 7 10, 8 11" {
					t.Error(got)
				}
				testkit.Advance(20 * time.Minute)
				x.want(s, "")
				sub := x.subscription("t", group)
				p := sub.GetPartitions()[0]
				if p.GetPending()+p.GetInFlight()+p.GetRetrying()+p.GetParked() != 0 || sub.GetReleased().GetForced() != want {
					t.Error(sub)
				}
				if exhausted == topicv1.Exhausted_EXHAUSTED_DEAD_LETTER {
					if n := x.deadLetters("t"); n != 1 {
						t.Errorf("%d dead letters", n)
					}
					_, err := x.Purge(t.Context(), op, &topicv1.PurgeMessagesRequest{Topic: "t.dlq", Before: latest()})
					refusedAs(t, err, refusal.InvalidArgument)
				}
			})
		}
	}
}

// Publishers and consumers continue while a log takes a minute to remove what was purged.
func TestPurgeHoldsUpNobody(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		takes, now := &atomic.Int64{}, &atomic.Int64{}
		x.over = func(l commitlog.Log) commitlog.Log { return slowRemoval{l, takes, now} }
		x.restart()
		x.groups("t", "g")
		x.publish("t", 0, 100)
		takes.Store(int64(time.Minute))
		done := make(chan error, 1)
		go func() {
			_, err := x.Purge(t.Context(), op, &topicv1.PurgeMessagesRequest{Topic: "t", Before: latest()})
			done <- err
		}()
		testkit.Advance(time.Second)
		s, begin := x.renewing("t", "g"), time.Now()
		for n := range 20 {
			x.publish("t", n, 1)
			if list := x.some(s); payloads(list) != fmt.Sprint(n) || len(x.ack(s, list)) > 0 {
				t.Fatalf("received %s", payloads(list))
			}
		}
		if took := time.Since(begin); now.Load() != 1 || took > 30*time.Second {
			t.Errorf("20 messages take %s beside %d removals", took, now.Load())
		}
		testkit.Must(t, <-done)
	})
}

// A backfill whose messages are purged while it runs comes to its end, with a member that has some of them.
func TestPurgeDuringABackfill(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "other")
		x.many("t", 0, 3000)
		x.subscribe("t", "g", nil)
		s := x.attach("t", "g", "m")
		x.backfill(&topicv1.StartBackfillRequest{Topic: "t", Group: "g", Async: true})
		had := x.some(s)
		if len(had) == 0 || len(had) == 3000 {
			t.Fatalf("%d messages came", len(had))
		}
		if got := x.purge(position("0-2999")); got != "0:0-2999 g:2999 other:2999" {
			t.Error(got)
		}
		if refused := x.ack(s, had); len(refused) > 0 {
			t.Errorf("refused %v", refused)
		}
		x.ack(s, x.want(s, "2999"))
		testkit.Advance(time.Minute)
		b := x.filled("t", "g")
		if b.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED {
			t.Errorf("the backfill is %v", b)
		}
		x.publish("t", 3000, 5)
		x.want(s, numbers(3000, 5))
		x.wantReleased("in the end", "true [0 0 0 0 2999 0]")
	})
}

// Under load, with members that consume, in order of key too: each message is acknowledged or counted in the
// ledger, never both and never neither; those of a key come to a member in order; and everything proceeds in
// the end. To different members they may not: one may still have a message that was purged, while another
// gets the next one. It hears that its lease is lost.
func TestPurgeUnderLoad(t *testing.T) {
	unbubbled(t, func(t *testing.T, x *fixture) {
		const publishers, each = 4, 400
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 2})
		x.subscribe("t", "any", nil)
		x.subscribe("t", "keyed", &topicv1.SubscriptionConfig{Ordering: topicv1.Ordering_ORDERING_KEY})
		x.subscribe("t", "away", nil)
		going, stop := context.WithCancel(t.Context())
		defer stop()
		var members, load sync.WaitGroup
		seen := map[string]*atomic.Int64{"any": {}, "keyed": {}}
		for group, n := range seen {
			for range 3 {
				s := x.renewing("t", group)
				members.Go(func() { consumeInOrder(going, t, s, group == "keyed", n) })
			}
		}
		for n := range publishers {
			load.Go(func() {
				for i := range each {
					m := messages(i, 1)
					m[0].Key = fmt.Sprint("key-", n)
					_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: m})
					testkit.Must(t, err)
				}
			})
		}
		load.Go(func() {
			for range 60 {
				_, err := x.Purge(t.Context(), op, &topicv1.PurgeMessagesRequest{Topic: "t", Before: latest()})
				testkit.Must(t, err)
				time.Sleep(time.Millisecond)
			}
		})
		load.Wait()
		for group, n := range seen {
			within(t, group, func() bool {
				sub := x.subscription("t", group)
				return sub.GetProcessed()+sub.GetReleased().GetForced() == publishers*each && pendingOf(sub) == 0
			})
			if n.Load() == 0 || x.subscription("t", group).GetReleased().GetForced() == 0 {
				t.Errorf("%s: %d deliveries, %v", group, n.Load(), x.subscription("t", group).GetReleased())
			}
		}
		x.purge(latest())
		if sub := x.subscription("t", "away"); sub.GetReleased().GetForced() != publishers*each || pendingOf(sub) != 0 {
			t.Error(sub)
		}
		stop()
		members.Wait()
		if n := x.Counters().Ledger[machine.ByRetention].Load(); n != 0 {
			t.Errorf("%d under another cause", n)
		}
	})
}

func pendingOf(s *topicv1.Subscription) (n int64) {
	for _, p := range s.GetPartitions() {
		n += p.GetPending()
	}
	return n
}

// within waits until something is so.
func within(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: it is never so", what)
		}
	}
}

// consumeInOrder acknowledges what a member gets, and counts it. Messages of a key come in order if they have
// to.
func consumeInOrder(ctx context.Context, t *testing.T, s *Session, ordered bool, count *atomic.Int64) {
	keys := map[string]int{}
	for {
		e, err := s.Receive(ctx, 20)
		if err != nil || e.Gone != "" {
			return
		}
		list := read(t, e.Deliveries)
		if len(list) == 0 {
			continue
		}
		count.Add(int64(len(list)))
		for _, m := range list {
			var n int
			_, _ = fmt.Sscan(m.payload, &n)
			key := m.message.GetKey()
			if last, ok := keys[key]; ordered && ok && n <= last {
				t.Errorf("%d of %s comes after %d", n, key, last)
			}
			keys[key] = n
		}
		if _, err := s.Ack(context.WithoutCancel(ctx), at(list)); err != nil {
			return
		}
	}
}
