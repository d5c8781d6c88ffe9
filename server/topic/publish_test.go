package topic

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Each group gets each message; what it has acknowledged does not come again, also not
// after the process ended.
func TestGroupsGetEachMessage(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "a", "b")
		a, b := x.attach("t", "a", "m"), x.attach("t", "b", "m")
		x.publish("t", 0, 100)
		x.ack(a, x.want(a, numbers(0, 100)))
		x.want(b, numbers(0, 100))
		if s := x.status("t", "0-7"); s.GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_PENDING ||
			len(s.GetRequired()) != 2 || len(s.GetAcknowledged()) != 1 {
			t.Error(s)
		}
		x.restart()
		a, b = x.attach("t", "a", "m"), x.attach("t", "b", "m")
		x.want(a, "")
		x.ack(b, x.want(b, numbers(0, 100)))
		if s := x.status("t", "0-7"); s.GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
			t.Error(s)
		}
	})
}

// HQ-B08, HQ-B09, HQ-B10, HQ-B11, HQ-B12: a topic that blocks takes nothing without an
// active subscription and everything as soon as there is one; one that does not, and a
// queue, take everything.
func TestWritesAreBlocked(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		block := true
		x.configure("b", &topicv1.TopicConfig{
			Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, BlockWritesOnZeroSubscriptions: &block,
		})
		x.configure("q", &topicv1.TopicConfig{BlockWritesOnZeroSubscriptions: &block})
		x.groups("open")
		blocked := func() {
			t.Helper()
			_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "b", Messages: messages(0, 1)})
			refusedAs(t, err, refusal.NoSubscriptions)
			if !strings.Contains(err.Error(), "Topic 'b' has zero ACTIVE subscriptions and blocks writes") {
				t.Error(err)
			}
		}
		blocked()
		x.subscribe("b", "g", nil)
		x.publish("b", 0, 1)
		for _, f := range []func(context.Context, Caller, string, string) (*topicv1.Subscription, error){x.Pause, x.Resume} {
			if _, err := f(t.Context(), op, "b", "g"); err != nil {
				t.Fatal(err)
			}
			if x.state("b", "g") == storage.Paused {
				blocked()
			} else {
				x.publish("b", 1, 1)
			}
		}
		if d, err := x.Topic(t.Context(), op, "b"); err != nil || d.GetPartitions()[0].GetEnd() != 2 {
			t.Error(d, err)
		}
		x.publish("q", 0, 1)
		x.publish("open", 0, 1)
		if n := x.Counters().Unsubscribed.Load(); n != 1 { // HQ-I05
			t.Errorf("%d publishes without a subscription are counted", n)
		}
		if st := x.status("open", "0-0"); len(st.GetRequired()) != 0 {
			t.Error(st)
		}
	})
}

// Whether a publish is taken is decided when it is stored: each that was has a position
// before the subscription's end, or after the next one's start.
func TestWriteBlockIsExact(t *testing.T) {
	unbubbled(t, func(t *testing.T, x *fixture) {
		block := true
		x.configure("b", &topicv1.TopicConfig{
			Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, BlockWritesOnZeroSubscriptions: &block,
		})
		var mu sync.Mutex
		taken := map[int64]bool{}
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					r, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "b", Messages: messages(0, 1)})
					if err != nil {
						time.Sleep(time.Microsecond)
						continue
					}
					mu.Lock()
					taken[r.GetResults()[0].GetPosition()] = true
					mu.Unlock()
				}
			})
		}
		held := map[int64]bool{}
		for range 20 {
			start := x.subscribe("b", "g", nil).GetPartitions()[0].GetStart()
			time.Sleep(time.Millisecond)
			d, err := x.Cancel(t.Context(), op, "b", "g")
			if err != nil {
				t.Fatal(err)
			}
			for p := start; p < d.GetPartitions()[0].GetEnd(); p++ {
				held[p] = true
			}
		}
		stop()
		all.Wait()
		if len(taken) == 0 || len(taken) != len(held) {
			t.Errorf("%d were taken, %d while the group was subscribed", len(taken), len(held))
		}
		for p := range taken {
			if !held[p] {
				t.Fatalf("position %d was taken without a subscription", p)
			}
		}
	})
}

// A publish that is repeated is stored once and answered alike, also by the next process.
func TestRepeatedPublish(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 8})
		x.subscribe("t", "g", nil)
		r := &topicv1.PublishRequest{Topic: "t", Messages: messages(0, 20), Producer: &topicv1.Producer{Id: "p", Number: 1}}
		for i := range 10 {
			r.Messages[i].Key = fmt.Sprint(i)
		}
		first, err := x.Publish(t.Context(), op, r)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 2 {
			again, err := x.Publish(t.Context(), op, r)
			if err != nil {
				t.Fatal(err)
			}
			for i, m := range again.GetResults() {
				if !m.GetReplayed() || m.GetMessageId() != first.GetResults()[i].GetMessageId() {
					t.Errorf("%d: %v, not %v", n, m, first.GetResults()[i])
				}
			}
			x.restart()
		}
		for _, i := range []int{3, 15} { // with a key, and without
			other := proto.CloneOf(r)
			other.Messages[i].Payload = []byte("another")
			_, err := x.Publish(t.Context(), op, other)
			refusedAs(t, err, refusal.ProducerNumberReused)
		}
		if n := len(x.receive(x.attach("t", "g", "m"))); n != 20 {
			t.Errorf("%d messages", n)
		}
		for n := range 70 {
			r.Producer.Number = int64(n + 2)
			if _, err := x.Publish(t.Context(), op, r); err != nil {
				t.Fatal(err)
			}
		}
		r.Producer.Number = 2
		_, err = x.Publish(t.Context(), op, r)
		refusedAs(t, err, refusal.ProducerNumberTooOld)
	})
}

// HQ-B06, HQ-B07: publishing reads and writes nothing of the catalogue.
func TestPublishReadsNoRows(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "a", "b")
		x.publish("t", 0, 1)
		var calls atomic.Int64
		x.stop()
		if err := x.store.Close(); err != nil {
			t.Fatal(err)
		}
		x.wrap = func(s store.Store) store.Store { return counted{s, &calls} }
		x.start()
		x.publish("t", 1, 1)
		before := calls.Load()
		for i := range 100 {
			x.publish("t", i, 1)
		}
		if n := calls.Load() - before; n > 5 { // the jobs' own
			t.Errorf("%d calls of the store", n)
		}
	})
}

// counted counts reads and plans.
type counted struct {
	store.Store
	calls *atomic.Int64
}

func (c counted) Get(ctx context.Context, k store.Key, s store.Consistency) (store.Item, error) {
	c.calls.Add(1)
	return c.Store.Get(ctx, k, s)
}

func (c counted) Transact(ctx context.Context, p store.Plan) error {
	c.calls.Add(1)
	return c.Store.Transact(ctx, p)
}

// HQ-B14, HQ-F04: a message of a queue is pending, then processed, then complete, and goes
// when its retention is over.
func TestStatus(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("q", &topicv1.TopicConfig{MessageRetention: seconds(600)})
		x.publish("q", 0, 2)
		status := func(want topicv1.MessageStatus) {
			t.Helper()
			if st := x.status("q", "0-0"); st.GetStatus() != want {
				t.Error(st)
			}
		}
		status(topicv1.MessageStatus_MESSAGE_STATUS_PENDING)
		s := x.attach("q", "", "m")
		had := x.want(s, numbers(0, 2))
		status(topicv1.MessageStatus_MESSAGE_STATUS_PROCESSING)
		x.ack(s, had)
		status(topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED)
		testkit.Advance(5 * time.Minute)
		status(topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED)
		testkit.Advance(11 * time.Minute)
		_, err := x.MessageStatus(t.Context(), op, &topicv1.GetMessageStatusRequest{Topic: "q", MessageId: "0-0"})
		refusedAs(t, err, refusal.PositionOutOfRange)
		for id, r := range map[string]refusal.Reason{
			"0-2": refusal.PositionOutOfRange, "1-0": refusal.PositionOutOfRange, "x": refusal.InvalidArgument,
		} {
			_, err := x.MessageStatus(t.Context(), op, &topicv1.GetMessageStatusRequest{Topic: "q", MessageId: id})
			refusedAs(t, err, r)
		}
	})
}
