package topic

import (
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/testkit"
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
			Acknowledged: 9, Expired: 1})
		testkit.Advance(40 * time.Second) // the last attempt
		check("a dead letter", GroupValues{Delivered: 11, Redelivered: 1, Acknowledged: 9, Expired: 2, DeadLettered: 1})
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
