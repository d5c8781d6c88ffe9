package topic

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// delayed publishes messages numbered from from on that wait, with a key.
func (x *fixture) delayed(name string, from, n int, delay time.Duration, key string) []*topicv1.PublishResult {
	x.t.Helper()
	list := messages(from, n)
	for _, m := range list {
		m.Key, m.Delay = key, durationpb.New(delay)
	}
	r, err := x.Publish(x.t.Context(), op, &topicv1.PublishRequest{Topic: name, Messages: list})
	testkit.Must(x.t, err)
	return r.GetResults()
}

// A message that waits is delivered to each group when it is due, and not before; what comes after it passes it, also
// of its key. It is pending meanwhile, its group is healthy, and a restart changes nothing of that.
func TestDelay(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g", "idle", "paused")
		x.subscribe("t", "keys", &topicv1.SubscriptionConfig{Ordering: topicv1.Ordering_ORDERING_KEY})
		_, err := x.Pause(t.Context(), op, "t", "paused")
		testkit.Must(t, err)
		s, keys := x.attach("t", "g", "m"), x.attach("t", "keys", "m")
		began := time.Now()
		ids := x.delayed("t", 0, 2, 40*time.Second, "k")
		x.delayed("t", 2, 1, 0, "k")
		for _, session := range []*Session{s, keys} {
			x.ack(session, x.want(session, "2"))
		}
		sub := x.subscription("t", "g")
		testkit.Equal(t, "pending", sub.GetPartitions()[0].GetPending(), 2)
		testkit.Equal(t, "delayed", sub.GetPartitions()[0].GetDelayed(), 2)
		testkit.Equal(t, "retrying", sub.GetPartitions()[0].GetRetrying(), 0)
		testkit.Equal(t, "status", x.status("t", ids[0].GetMessageId()).GetStatus(),
			topicv1.MessageStatus_MESSAGE_STATUS_PENDING)
		testkit.Advance(20 * time.Second)
		testkit.Equal(t, "healthy", x.health("t", "g").GetHealthy(), true)
		x.want(s, "")
		x.restart()
		s, keys = x.attach("t", "g", "m"), x.attach("t", "keys", "m")
		testkit.Advance(time.Until(began.Add(38 * time.Second)))
		x.want(s, "")
		testkit.Advance(2 * time.Second)
		list := x.want(s, "0 1")
		if waited := time.Since(began); waited < 40*time.Second || waited > 43*time.Second {
			t.Errorf("delivered after %s", waited)
		}
		m := list[0].message
		due := m.GetPublishTime().AsTime().Add(40 * time.Second)
		if m.GetDelay() != nil || !m.GetDeliverTime().AsTime().Equal(due) {
			t.Errorf("%v", m)
		}
		x.ack(s, list)
		testkit.Equal(t, "in order of the key", payloads(x.work(keys)), "0 1")
		testkit.Equal(t, "pending when it was handled", x.subscription("t", "g").GetPartitions()[0].GetPending(), 0)
		testkit.Equal(t, "a member that comes later", payloads(x.work(x.attach("t", "idle", "m"))), "0 1 2")
		_, err = x.Resume(t.Context(), op, "t", "paused")
		testkit.Must(t, err)
		testkit.Equal(t, "a group that was paused", payloads(x.work(x.attach("t", "paused", "m"))), "0 1 2")
	})
}

// A message at a time is delivered then, and one whose time is past at once. A message that is passed on, or becomes a
// dead letter, does not wait. A group that begins later, and one that seeks back, wait as others.
func TestDeliverTime(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{MaxAttempts: 1}})
		s := x.attach("t", "g", "m")
		_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: []*topicv1.TopicMessage{
			{Payload: []byte("late"), DeliverTime: timestamppb.New(time.Now().Add(time.Hour))},
			{Payload: []byte("past"), DeliverTime: timestamppb.New(time.Now().Add(-time.Hour))},
		}})
		testkit.Must(t, err)
		list := x.want(s, "past")
		testkit.Equal(t, "has no time", list[0].message.GetDeliverTime() == nil, true)
		x.ack(s, list)
		x.subscribe("t", "after", &topicv1.SubscriptionConfig{Start: &topicv1.Position{
			At: &topicv1.Position_Earliest{Earliest: true}}})
		after := x.attach("t", "after", "m")
		x.ack(after, x.want(after, "past"))
		_, err = x.Seek(t.Context(), op, &topicv1.SeekSubscriptionRequest{Topic: "t", Group: "after",
			To: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}})
		testkit.Must(t, err)
		x.ack(after, x.want(after, "past"))
		testkit.Advance(time.Hour)
		x.want(after, "late")
		list = x.want(s, "late")
		_, err = x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t",
			Messages: []*topicv1.TopicMessage{list[0].message}})
		testkit.Must(t, err)
		x.ack(s, x.want(s, "late"))
		_, err = s.Nack(t.Context(), &topicv1.NackSet{Positions: at(list).GetPositions()})
		testkit.Must(t, err)
		testkit.Advance(10 * time.Second)
		x.subscribe("t.dlq", "d", &topicv1.SubscriptionConfig{Start: &topicv1.Position{
			At: &topicv1.Position_Earliest{Earliest: true}}})
		x.want(x.attach("t.dlq", "d", "m"), "late")
	})
}

// What would never be delivered, or not be kept so long, is refused, with all of its request.
func TestDelayRefused(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{MaxRetention: durationpb.New(48 * time.Hour)})
		x.configure("long", &topicv1.TopicConfig{MaxRetention: durationpb.New(100 * 24 * time.Hour),
			ZombieSubscriptionTtl: durationpb.New(100 * 24 * time.Hour)})
		in := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(d)) }
		for text, m := range map[string]*topicv1.TopicMessage{
			"max_retention":     {Delay: durationpb.New(48 * time.Hour)},
			"max_retention is":  {DeliverTime: in(1000 * time.Hour)},
			"send one of them":  {Delay: seconds(1), DeliverTime: in(time.Second)},
			"ttl ends before":   {Delay: seconds(10), Ttl: seconds(10)},
			"ttl ends":          {DeliverTime: in(10 * time.Second), Ttl: seconds(9)},
			"the most is 720h0": {DeliverTime: in(31 * 24 * time.Hour), Key: "long"},
		} {
			name := "t"
			if m.GetKey() != "" {
				name = m.GetKey()
			}
			_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: name,
				Messages: []*topicv1.TopicMessage{{Payload: []byte("with it")}, m}})
			refusedAs(t, err, refusal.InvalidArgument)
			if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "message 1") {
				t.Errorf("%s: %v", text, err)
			}
		}
		x.want(x.attach("t", "", "m"), "")
		x.delayed("long", 0, 1, 30*24*time.Hour-time.Second, "")
	})
}

// As many messages wait in a partition as may: more that wait are refused, others are stored and pass. A repetition of
// a request that was stored is answered. There is room again when the messages are due, and the groups get them all:
// one that reads, also after a restart, and one that comes later. Acknowledged messages lie between them, which is what
// takes most of a cursor, and members have as many others in hand meanwhile.
func TestManyDelayed(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g", "idle")
		attach := func(group string) *Session {
			s, err := x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: group, RenewCredits: true,
				Credits: &topicv1.Credits{Messages: 60_000}}, false)
			testkit.Must(t, err)
			return s
		}
		s := attach("g")
		const each = 1 << 10
		var last *topicv1.PublishRequest
		for from := 0; from < machine.MaxPostponed; from += each {
			last = &topicv1.PublishRequest{Topic: "t", Messages: messages(from, each),
				Producer: &topicv1.Producer{Id: "p", Number: int64(from + 1)}}
			var list []*topicv1.TopicMessage
			for _, m := range last.GetMessages() {
				m.Delay = durationpb.New(time.Hour)
				list = append(list, m, &topicv1.TopicMessage{Payload: []byte("between")})
			}
			last.Messages = list
			_, err := x.Publish(t.Context(), op, last)
			testkit.Must(t, err)
			testkit.Equal(t, "between", len(x.work(s)), each)
		}
		one := messages(machine.MaxPostponed, 1)
		one[0].Delay = seconds(1)
		_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: one})
		refusedAs(t, err, refusal.TooMany)
		again, err := x.Publish(t.Context(), op, last)
		testkit.Must(t, err)
		testkit.Equal(t, "a repetition", again.GetResults()[0].GetReplayed(), true)
		for from := 0; from < machine.MaxPostponed; from += each {
			x.publish("t", 100_000+from, each)
		}
		others := x.receive(s)
		testkit.Equal(t, "others", payloads(others), numbers(100_000, machine.MaxPostponed))
		testkit.Equal(t, "that are refused", len(x.ack(s, others)), 0)
		x.restart()
		s = attach("g")
		x.want(s, "")
		testkit.Equal(t, "delayed", x.subscription("t", "g").GetPartitions()[0].GetDelayed(), machine.MaxPostponed)
		_, err = x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: one})
		refusedAs(t, err, refusal.TooMany) // the group has read them again
		testkit.Advance(time.Hour)
		_, err = x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: one})
		testkit.Must(t, err)
		testkit.Advance(time.Second)
		due := x.work(s)
		testkit.Equal(t, "when they are due", len(due), machine.MaxPostponed+1)
		testkit.Equal(t, "in order", payloads(due), numbers(0, machine.MaxPostponed+1))
		idle := x.work(attach("idle"))
		testkit.Equal(t, "of a group that comes later", len(idle), 3*machine.MaxPostponed+1)
	})
}

// What waits is counted from the log when no member reads it: after a restart not more may wait than before, and a
// group gets what does not wait. Publishers at the same time do not get in more together.
func TestDelayedAreCounted(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{HeartbeatTimeout: durationpb.New(24 * time.Hour)})
		publish := func(from, n int) error {
			for ; n > 0; n -= 1024 {
				var list []*topicv1.TopicMessage
				for _, m := range messages(from, min(n, 1024)) {
					m.Delay = durationpb.New(time.Hour)
					list = append(list, m, &topicv1.TopicMessage{Payload: []byte("between")})
				}
				_, err := x.Publish(context.Background(), op, &topicv1.PublishRequest{Topic: "t", Messages: list})
				if err != nil {
					return err
				}
			}
			return nil
		}
		const most = machine.MaxPostponed
		testkit.Must(t, publish(0, most/2))
		x.restart()
		testkit.Must(t, publish(most/2, most/4))
		x.restart()
		testkit.Must(t, publish(0, most/8))
		var stored atomic.Int64
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if publish(0, most/64) == nil {
					stored.Add(1)
				}
			})
		}
		all.Wait()
		testkit.Equal(t, "that were let in together", stored.Load(), 8)
		refusedAs(t, publish(0, 1), refusal.TooMany)
		s, err := x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: "g", RenewCredits: true,
			Credits: &topicv1.Credits{Messages: 60_000}}, false)
		testkit.Must(t, err)
		testkit.Equal(t, "between", len(x.work(s)), most)
		testkit.Advance(time.Hour)
		testkit.Equal(t, "when they are due", len(x.work(s)), most)
	})
}

// The age of the oldest message is that of one that is due, counted from when it was. What is not in memory is read.
func TestAgeOfDelayed(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{HeartbeatTimeout: durationpb.New(24 * time.Hour)})
		age := func(what string, want time.Duration) {
			t.Helper()
			got := x.metric("t", "g")
			if got.Topic == "" || got.Oldest < want || got.Oldest > want+20*time.Second {
				t.Errorf("%s: %+v", what, got)
			}
		}
		x.delayed("t", 0, 3, time.Hour, "")
		testkit.Advance(10 * time.Minute)
		age("not due", 0)
		x.restart()
		testkit.Advance(10 * time.Minute)
		age("not due after a restart", 0)
		x.publish("t", 3, 1)
		testkit.Advance(10 * time.Minute)
		age("one behind them", 10*time.Minute)
		s := x.attach("t", "g", "m")
		x.ack(s, x.want(s, "3"))
		testkit.Advance(40 * time.Minute)
		age("since it is due", 10*time.Minute)
	})
}
