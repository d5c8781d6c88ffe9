package topic

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// The metrics of a group say how far it is behind, for how long, and what became of its messages.
func TestMetricsOfAGroup(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "other")
		retry := &topicv1.RetryPolicy{MaxAttempts: 2, Lease: seconds(10), InitialBackoff: seconds(1)}
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{Retry: retry})
		s := x.attach("t", "g", "m")
		check := func(what string, want GroupValues) {
			t.Helper()
			got := x.metric("t", "g")
			want.Topic, want.Group = "t", "g"
			if got.Oldest < want.Oldest || got.Oldest > want.Oldest+20*time.Second {
				t.Errorf("%s: the oldest is %s old", what, got.Oldest)
			}
			got.Oldest, want.Oldest = 0, 0
			testkit.Equal(t, what, got, want)
		}
		check("without messages", GroupValues{})
		x.publish("t", 0, 10)
		list := x.receive(s)
		x.ack(s, list[:9])
		testkit.Advance(5 * time.Second)
		check("before the next look", GroupValues{Delivered: 10, Acknowledged: 9})
		testkit.Advance(15 * time.Second) // a lease ends, and another one begins
		x.receive(s)
		check("in hand again", GroupValues{Lag: 1, Oldest: 15 * time.Second, Delivered: 11, Redelivered: 1,
			Acknowledged: 9, LeasesExpired: 1})
		testkit.Advance(40 * time.Second) // the last attempt
		check("a dead letter", GroupValues{Delivered: 11, Redelivered: 1, Acknowledged: 9, LeasesExpired: 2, DeadLettered: 1})
		testkit.Equal(t, "that nobody reads", x.metric("t", "other").Lag, 10)
		testkit.Equal(t, "delivered to nobody", x.metric("t", "other").Delivered, 0)

		_, err := x.Cancel(t.Context(), op, "t", "g")
		testkit.Must(t, err)
		testkit.Equal(t, "of a cancelled group", x.metric("t", "g"), GroupValues{})
		x.subscribe("t", "g", nil)
		testkit.Equal(t, "of the next one", x.metric("t", "g"), GroupValues{Topic: "t", Group: "g"})
		testkit.Must(t, x.Delete(t.Context(), op, "t"))
		testkit.Equal(t, "of a deleted topic", x.metric("t", "other"), GroupValues{})
		testkit.Equal(t, "of all others", len(x.engine.Groups.Values(time.Now())), 1)
	})
}

// A topic that nobody uses has metrics: it was closed, or is not in use since the process began.
func TestMetricsOfTopicsNotInUse(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("q", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_QUEUE})
		x.publish("q", 0, 5)
		behind := func(what string, least time.Duration) {
			t.Helper()
			got := x.metric("q", "$queue")
			if got.Lag != 5 || got.Oldest < least || got.Oldest > least+time.Minute {
				t.Errorf("%s: %+v", what, got)
			}
		}
		testkit.Advance(time.Hour)
		testkit.Equal(t, "topics in use", x.Sizes().Open, 0)
		behind("closed", time.Hour)
		x.restart()
		testkit.Equal(t, "at once", x.metric("q", "$queue"), GroupValues{})
		testkit.Advance(30 * time.Second)
		behind("after a restart", time.Hour+30*time.Second)
		testkit.Advance(time.Hour)
		testkit.Equal(t, "topics in use, later", x.Sizes().Open, 0)
		behind("closed again", 2*time.Hour+30*time.Second)
	})
}

// noTopic fails the reads of the cursors of the topic with number 1.
type noTopic struct {
	store.Store
	on *atomic.Bool
}

func (n noTopic) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if n.on.Load() && q.Table == store.Subscriptions && q.PK == table.CursorPartition(1, 0) {
		return store.Page{}, store.ErrUnavailable
	}
	return n.Store.Query(ctx, q)
}

// A topic that cannot be opened keeps no other from its metrics, and has its own once it can.
func TestMetricsBesideATopicThatFails(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on := &atomic.Bool{}
		x.wrap = func(s store.Store) store.Store { return noTopic{s, on} }
		x.restart()
		for n := range 3 {
			name := fmt.Sprint("t", n)
			x.configure(name, &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_QUEUE})
			x.publish(name, 0, 5)
		}
		on.Store(true)
		x.restart()
		testkit.Advance(time.Minute)
		testkit.Equal(t, "of the topic that fails", x.metric("t0", "$queue"), GroupValues{})
		for _, name := range []string{"t1", "t2"} {
			testkit.Equal(t, name, x.metric(name, "$queue").Lag, 5)
		}
		on.Store(false)
		testkit.Advance(reopened)
		testkit.Equal(t, "once it can be opened", x.metric("t0", "$queue").Lag, 5)
	})
}

// reopened is more than the survey waits until it tries again to open a topic.
const reopened = 11 * time.Minute
