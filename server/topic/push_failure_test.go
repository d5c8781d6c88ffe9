package topic

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/push"
)

// retries are a policy of so many attempts, a second apart.
func retries(attempts int32) *topicv1.SubscriptionConfig {
	return &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{
		MaxAttempts: attempts, InitialBackoff: seconds(1), MaxBackoff: seconds(1),
	}}
}

// deadLettered are the payloads and reasons of the dead letters of "orders".
func (x *fixture) deadLettered() (list []string) {
	x.t.Helper()
	if x.engine.Catalog.Topic("orders.dlq") == nil {
		return nil
	}
	r, err := x.Browse(x.t.Context(), op, &topicv1.BrowseMessagesRequest{Topic: "orders.dlq", MaxMessages: 1000})
	testkit.Must(x.t, err)
	for _, m := range r.GetMessages() {
		list = append(list, string(m.GetMessage().GetPayload())+" "+m.GetMessage().GetHeaders()["parley-error"])
	}
	return list
}

// a webhook that cannot be reached for two hours takes no attempt of any message, and gets all of them once it is
// back. The group does not die of it, although its timeout is three seconds, and the state is visible.
func TestWebhookThatIsAwayForHours(t *testing.T) {
	config := retries(2)
	config.HeartbeatInterval, config.HeartbeatTimeout = seconds(1), seconds(3)
	pushing(t, config, func(t *testing.T, x *fixture, _ string) {
		x.hooks.leave()
		x.publish("orders", 0, 200)
		pass(2 * time.Hour)
		testkit.Equal(t, "state", x.state("orders", "g"), topicv1.SubscriptionState_SUBSCRIPTION_STATE_ACTIVE)
		s := x.pushState(topicv1.PushState_PUSH_STATE_FAILING)
		testkit.Equal(t, "error", s.GetLastError(), "connect")
		testkit.Equal(t, "failing", x.metric("orders", "g").PushFailing, 1)
		if n := x.hooks.back(); n < 2*60 || n > 2*60+20 {
			t.Errorf("%d connections in two hours", n)
		}
		pass(2 * time.Minute)
		list := x.hooks.take()
		testkit.Equal(t, "requests", len(list), 200)
		for _, p := range list {
			testkit.Equal(t, "attempt", p.GetAttempt(), 1)
		}
		testkit.Equal(t, "pending", x.pending(), 0)
		testkit.Equal(t, "failing", x.metric("orders", "g").PushFailing, 0)
		x.pushState(topicv1.PushState_PUSH_STATE_OK)
	})
}

// A webhook that answers 500 to everything for an hour takes the last attempts of a few messages of a backlog, and
// not of the backlog; without the pauses all 500 would be dead letters after seconds.
func TestWebhookThatFailsForAnHour(t *testing.T) {
	pushing(t, retries(5), func(t *testing.T, x *fixture, _ string) {
		x.hooks.always(500)
		x.publish("orders", 0, 500)
		pass(time.Hour)
		dead := x.deadLettered()
		if len(dead) > 4 {
			t.Errorf("%d dead letters: %q", len(dead), dead)
		}
		testkit.Equal(t, "failures", x.metric("orders", "g").PushFailures, int64(len(x.hooks.take())))
		x.hooks.always(200)
		pass(2 * time.Minute)
		testkit.Equal(t, "taken", len(x.hooks.take()), 500-len(dead))
		testkit.Equal(t, "pending", x.pending(), 0)
	})
}

// A message at which the webhook always fails goes to the dead letters, and the others do not wait for it for good:
// also if it is the only one for long, which makes the webhook slow.
func TestPoisonForAWebhook(t *testing.T) {
	pushing(t, retries(8), func(t *testing.T, x *fixture, _ string) {
		x.hooks.answers(func(p pushedRequest) int {
			if p.payload() == "0" {
				return 500
			}
			return 200
		})
		x.publish("orders", 0, 1)
		pass(time.Minute)
		x.pushState(topicv1.PushState_PUSH_STATE_FAILING)
		x.publish("orders", 1, 50)
		pass(time.Hour)
		testkit.Equal(t, "dead letters", strings.Join(x.deadLettered(), ","), "0 the webhook answered 500")
		testkit.Equal(t, "pending", x.pending(), 0)
		x.pushState(topicv1.PushState_PUSH_STATE_OK)
	})
}

// Messages that the webhook rejects fail by the group's policy, without pauses for others.
func TestRejectedByAWebhook(t *testing.T) {
	pushing(t, retries(3), func(t *testing.T, x *fixture, _ string) {
		x.hooks.always(422)
		x.publish("orders", 0, 100)
		pass(10 * time.Second)
		testkit.Equal(t, "dead letters", len(x.deadLettered()), 100)
		testkit.Equal(t, "requests", len(x.hooks.take()), 300)
		x.pushState(topicv1.PushState_PUSH_STATE_OK)
	})
}

// A redirect is not followed, and is a failure.
func TestRedirectOfAWebhook(t *testing.T) {
	pushing(t, retries(1), func(t *testing.T, x *fixture, _ string) {
		x.hooks.always(http.StatusPermanentRedirect)
		x.publish("orders", 0, 1)
		pass(time.Second)
		testkit.Equal(t, "dead letters", strings.Join(x.deadLettered(), ","), "0 the webhook answered 308")
		testkit.Equal(t, "error", x.subscription("orders", "g").GetPushStatus().GetLastError(), "redirect")
	})
}

// A webhook that has no room says when it has, which takes no attempt.
func TestRetryAfterOfAWebhook(t *testing.T) {
	for _, status := range []int{429, 503} {
		pushing(t, retries(1), func(t *testing.T, x *fixture, _ string) {
			x.hooks.header = http.Header{"Retry-After": {"300"}}
			x.hooks.always(status)
			x.publish("orders", 0, 5)
			pass(299 * time.Second)
			testkit.Equal(t, "requests", len(x.hooks.take()), 1)
			s := x.pushState(topicv1.PushState_PUSH_STATE_FAILING)
			if left := time.Until(s.GetNextAttemptAt().AsTime()); left <= 0 || left > time.Second {
				t.Errorf("the next attempt is in %s", left)
			}
			x.hooks.always(200)
			pass(2 * time.Second)
			testkit.Equal(t, "requests", x.hooks.taken(), "0 1 2 3 4")
			testkit.Equal(t, "dead letters", len(x.deadLettered()), 0)
		})
	}
}

// A message that was under way, and is taken, does not end the time that the webhook has asked for: the server
// says when it goes on, and does then. Without such a time it goes on at once.
func TestRetryAfterBesideASuccess(t *testing.T) {
	for _, wait := range []string{"", "300"} {
		pushing(t, retries(1), func(t *testing.T, x *fixture, _ string) {
			x.hooks.header = http.Header{"Retry-After": {wait}}
			x.publish("orders", 0, 1)
			pass(time.Second)
			late := make(chan struct{})
			var n atomic.Int64
			x.hooks.answers(func(pushedRequest) int {
				if n.Add(1) == 1 {
					<-late
					return 200
				}
				time.Sleep(10 * time.Millisecond)
				return 429
			})
			x.publish("orders", 1, 3)
			pass(100 * time.Millisecond)
			testkit.Equal(t, "requests", len(x.hooks.take()), 3)
			x.hooks.always(200)
			close(late)
			pass(100 * time.Millisecond)
			if wait == "" {
				testkit.Equal(t, "requests", len(x.hooks.take()), 2)
				x.pushState(topicv1.PushState_PUSH_STATE_OK)
				return
			}
			testkit.Equal(t, "requests", len(x.hooks.take()), 0)
			s := x.pushState(topicv1.PushState_PUSH_STATE_FAILING)
			if left := time.Until(s.GetNextAttemptAt().AsTime()); left < 299*time.Second || left > 300*time.Second {
				t.Errorf("the next attempt is in %s", left)
			}
			pass(299 * time.Second)
			testkit.Equal(t, "requests", len(x.hooks.take()), 0)
			pass(time.Second)
			testkit.Equal(t, "requests", len(x.hooks.take()), 2)
			x.pushState(topicv1.PushState_PUSH_STATE_OK)
		})
	}
}

// 410 pauses the subscription, also over a restart, says why, and stands in the audit. A resume continues, and
// takes the reason away.
func TestGoneWebhook(t *testing.T) {
	pushing(t, retries(1), func(t *testing.T, x *fixture, _ string) {
		x.hooks.always(410)
		x.publish("orders", 0, 3)
		pass(time.Hour)
		testkit.Equal(t, "requests", len(x.hooks.take()), 1)
		for range 2 {
			testkit.Equal(t, "state", x.state("orders", "g"), topicv1.SubscriptionState_SUBSCRIPTION_STATE_PAUSED)
			s := x.pushState(topicv1.PushState_PUSH_STATE_PAUSED)
			testkit.Equal(t, "status", s.GetLastStatus(), 410)
			testkit.Equal(t, "failing", x.metric("orders", "g").PushFailing, 1)
			x.restart()
			pass(2 * time.Second)
		}
		testkit.Equal(t, "rows of the audit", x.audit.count(Actor+" PauseSubscription"), 1)
		x.hooks.always(200)
		_, err := x.Resume(t.Context(), op, "orders", "g")
		testkit.Must(t, err)
		pass(2 * time.Minute)
		testkit.Equal(t, "requests", x.hooks.taken(), "0 1 2")
		x.pushState(topicv1.PushState_PUSH_STATE_OK)
		testkit.Equal(t, "failing", x.metric("orders", "g").PushFailing, 0)
	})
}

// 410 for a request that was under way before the group was resumed does not pause it again, nor stands in the
// audit: what the user has set since is not what the webhook was asked with.
func TestGoneBeforeAResume(t *testing.T) {
	pushing(t, retries(1), func(t *testing.T, x *fixture, _ string) {
		x.publish("orders", 0, 1)
		pass(time.Second)
		late := make(chan struct{})
		var n atomic.Int64
		x.hooks.answers(func(pushedRequest) int {
			if n.Add(1) == 1 {
				<-late
			}
			time.Sleep(10 * time.Millisecond)
			return 410
		})
		x.publish("orders", 1, 2)
		pass(time.Second)
		testkit.Equal(t, "requests", n.Load(), 2)
		testkit.Equal(t, "state", x.state("orders", "g"), topicv1.SubscriptionState_SUBSCRIPTION_STATE_PAUSED)
		x.hooks.always(200)
		_, err := x.Resume(t.Context(), op, "orders", "g")
		testkit.Must(t, err)
		close(late)
		pass(5 * time.Second)
		testkit.Equal(t, "state", x.state("orders", "g"), topicv1.SubscriptionState_SUBSCRIPTION_STATE_ACTIVE)
		testkit.Equal(t, "rows of the audit", x.audit.count(Actor+" PauseSubscription"), 1)
		testkit.Equal(t, "pending", x.pending(), 0)
	})
}

// A webhook that hangs has 15 seconds, longer than the lease of one, and gets no message a second time meanwhile.
func TestWebhookThatHangs(t *testing.T) {
	config := retries(2)
	config.Retry.Lease = seconds(1)
	pushing(t, config, func(t *testing.T, x *fixture, _ string) {
		x.hooks.answers(func(p pushedRequest) int { <-p.ctx.Done(); return 200 })
		x.publish("orders", 0, 1)
		pass(14 * time.Second)
		testkit.Equal(t, "requests", len(x.hooks.take()), 1)
		pass(5 * time.Second)
		list := x.hooks.take()
		testkit.Equal(t, "requests", len(list), 1)
		testkit.Equal(t, "attempt", list[0].GetAttempt(), 2)
		testkit.Equal(t, "error", x.subscription("orders", "g").GetPushStatus().GetLastError(), "timeout")
		pass(20 * time.Second)
		testkit.Equal(t, "dead letters", strings.Join(x.deadLettered(), ","), "0 the request to the webhook failed: timeout")
		testkit.Equal(t, "leases that ended", x.metric("orders", "g").LeasesExpired, 0)
	})
}

// At most max_in_flight messages are under way, and 32 where it has no bound.
func TestMessagesUnderWay(t *testing.T) {
	for bound, want := range map[int32]int{0: pushMost, 3: 3, 1000: pushMost} {
		pushing(t, &topicv1.SubscriptionConfig{MaxInFlight: bound}, func(t *testing.T, x *fixture, _ string) {
			x.hooks.answers(func(pushedRequest) int { time.Sleep(time.Second); return 200 })
			x.publish("orders", 0, 1000)
			pass(10 * time.Minute)
			testkit.Equal(t, "requests at a time", x.hooks.most, want)
			testkit.Equal(t, "requests", len(x.hooks.take()), 1000)
		})
	}
}

// Another max_in_flight holds at once, for a worker that is there already.
func TestChangedMaxInFlight(t *testing.T) {
	pushing(t, &topicv1.SubscriptionConfig{MaxInFlight: 1}, func(t *testing.T, x *fixture, _ string) {
		x.hooks.answers(func(pushedRequest) int { time.Sleep(time.Second); return 200 })
		x.publish("orders", 0, 200)
		limit := func(bound int32) int {
			_, err := x.set(op, &topicv1.SubscriptionConfig{MaxInFlight: bound})
			testkit.Must(t, err)
			pass(5 * time.Second)
			x.hooks.mu.Lock()
			x.hooks.most = 0
			x.hooks.mu.Unlock()
			pass(10 * time.Second)
			x.hooks.mu.Lock()
			defer x.hooks.mu.Unlock()
			return x.hooks.most
		}
		for _, bound := range []int32{2, 8, 3} {
			testkit.Equal(t, "requests at a time", limit(bound), int(bound))
		}
		testkit.Equal(t, "attaches", x.logs.count("DRAINING"), 0)
	})
}

const pushMost = push.MaxInFlight

// With ORDERING_KEY the messages of a key come one after the other, in order, although some fail.
func TestPushInOrderOfKeys(t *testing.T) {
	config := retries(5)
	config.Ordering = topicv1.Ordering_ORDERING_KEY
	pushing(t, config, func(t *testing.T, x *fixture, _ string) {
		var mu sync.Mutex
		next, failed := map[string]int{}, map[string]bool{}
		x.hooks.answers(func(p pushedRequest) int {
			mu.Lock()
			defer mu.Unlock()
			key, n := p.GetMessage().GetMessage().GetKey(), 0
			_, err := fmt.Sscan(p.payload(), &n)
			if err != nil || n != next[key] {
				t.Errorf("key %s: message %s, want %d", key, p.payload(), next[key])
			}
			if n%3 == 1 && !failed[key+p.payload()] {
				failed[key+p.payload()] = true
				return 422
			}
			next[key]++
			return 200
		})
		var list []*topicv1.TopicMessage
		for i := range 10 {
			for _, key := range []string{"a", "b", "c", "d"} {
				list = append(list, &topicv1.TopicMessage{Key: key, Payload: fmt.Append(nil, i)})
			}
		}
		_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "orders", Messages: list})
		testkit.Must(t, err)
		pass(5 * time.Minute)
		testkit.Equal(t, "done", fmt.Sprint(next), "map[a:10 b:10 c:10 d:10]")
	})
}

// A lease that is longer than a poller may be silent does not end the session while the webhook fails.
func TestLongLeaseOfAWebhook(t *testing.T) {
	config := retries(5)
	config.Retry.Lease = durationpb.New(12 * time.Hour)
	pushing(t, config, func(t *testing.T, x *fixture, _ string) {
		x.hooks.leave()
		x.publish("orders", 0, 1)
		pass(10 * time.Minute)
		testkit.Equal(t, "restarts", x.logs.count("SILENT"), 0)
		testkit.Equal(t, "members", x.subscription("orders", "g").GetMembers(), 1)
	})
}
