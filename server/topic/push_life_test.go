package topic

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// A change of the address applies at once, to messages that are under way as well, and a webhook that fails does
// not delay it by its pause.
func TestChangedAddress(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, secret string) {
		to := func(url string) {
			_, err := x.set(op, &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: url}})
			testkit.Must(t, err)
		}
		x.hooks.answers(func(p pushedRequest) int {
			if p.url == hookURL {
				<-p.ctx.Done()
			}
			return 200
		})
		x.publish("orders", 0, 3)
		pass(5 * time.Second)
		x.hooks.take()
		to(hookURL + "/new")
		pass(3 * time.Second)
		list := x.hooks.take()
		testkit.Equal(t, "requests", len(list), 3)
		for _, p := range list {
			if p.url != hookURL+"/new" || p.GetAttempt() != 1 || !p.verifies(secret) {
				t.Errorf("%s, attempt %d", p.url, p.GetAttempt())
			}
		}
		x.hooks.leave()
		x.publish("orders", 3, 1)
		pass(10 * time.Minute)
		x.hooks.back()
		to(hookURL + "/newer")
		pass(3 * time.Second)
		testkit.Equal(t, "requests", x.hooks.taken(), "3")
	})
}

// Pause, resume, seek and cancel do for a group with a webhook what they do for others. A repetition after a failure
// has the id of the first delivery; after a seek a message has another one, because it was asked for again.
func TestLifeOfAPushedGroup(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, _ string) {
		_, err := x.Pause(t.Context(), op, "orders", "g")
		testkit.Must(t, err)
		x.publish("orders", 0, 2)
		pass(10 * time.Minute)
		testkit.Equal(t, "requests while paused", x.hooks.taken(), "")
		x.hooks.always(500)
		_, err = x.Resume(t.Context(), op, "orders", "g")
		testkit.Must(t, err)
		pass(500 * time.Millisecond)
		x.hooks.always(200)
		pass(time.Minute)
		ids := map[string]map[string]bool{"0": {}, "1": {}}
		requests := 0
		see := func() {
			for _, p := range x.hooks.take() {
				ids[p.payload()][p.id] = true
				requests++
			}
		}
		see()
		if requests < 3 || len(ids["0"]) != 1 || len(ids["1"]) != 1 {
			t.Errorf("%d requests with the ids %v", requests, ids)
		}
		_, err = x.Seek(t.Context(), op, &topicv1.SeekSubscriptionRequest{Topic: "orders", Group: "g",
			To: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}})
		testkit.Must(t, err)
		pass(time.Second)
		see()
		if len(ids["0"]) != 2 || len(ids["1"]) != 2 {
			t.Errorf("ids after the seek: %v", ids)
		}
		_, err = x.Cancel(t.Context(), op, "orders", "g")
		testkit.Must(t, err)
		x.publish("orders", 2, 2)
		pass(time.Minute)
		testkit.Equal(t, "requests after the end", x.hooks.taken(), "")
		r, err := x.create(op, &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: hookURL}})
		testkit.Must(t, err)
		x.publish("orders", 4, 1)
		pass(2 * time.Second)
		list := x.hooks.take()
		if len(list) != 1 || !list[0].verifies(r.GetPushSecret()) {
			t.Errorf("requests of the next generation: %v", list)
		}
	})
}

// The server pushes as the user who set the webhook. When that user loses the role, it stops and says so; the
// group dies, as any that nobody consumes. With the role, or another user's webhook, it goes on.
func TestRoleOfAWebhook(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.withHooks()
		x.groups("orders")
		who := x.bindTo("orders", "who", subscriber, "g")
		config := &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: hookURL}}
		_, err := x.create(who, config)
		testkit.Must(t, err)
		x.publish("orders", 0, 1)
		pass(time.Second)
		testkit.Equal(t, "requests", x.hooks.taken(), "0")
		x.bindTo("orders", "who", subscriber, "other")
		x.publish("orders", 1, 1)
		pass(15 * time.Second)
		testkit.Equal(t, "requests without the role", x.hooks.taken(), "")
		x.pushState(topicv1.PushState_PUSH_STATE_STOPPED)
		testkit.Equal(t, "failing", x.metric("orders", "g").PushFailing, 1)
		pass(10 * time.Minute)
		testkit.Equal(t, "state", x.state("orders", "g"), topicv1.SubscriptionState_SUBSCRIPTION_STATE_DEAD)
		x.bindTo("orders", "who", subscriber, "g")
		pass(15 * time.Second)
		testkit.Equal(t, "requests with the role again", x.hooks.taken(), "1")
		testkit.Equal(t, "state", x.state("orders", "g"), topicv1.SubscriptionState_SUBSCRIPTION_STATE_ACTIVE)
		x.bindTo("orders", "who", publisher)
		pass(15 * time.Second)
		_, err = x.set(op, config)
		testkit.Must(t, err)
		x.publish("orders", 2, 1)
		pass(15 * time.Second)
		testkit.Equal(t, "requests of another user's webhook", x.hooks.taken(), "2")
	})
}

// The server does not push for a user who is suspended, also after a restart, and says so. It goes on when the user
// is restored. A store that does not answer, and the suspension of others, stop nothing.
func TestSuspendedUserOfAWebhook(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		var suspended, away atomic.Bool
		x.barred = func(user string) (bool, error) {
			if away.Load() {
				return false, errors.New("the store is away")
			}
			return user != "who" || suspended.Load(), nil
		}
		x.withHooks()
		x.groups("orders")
		_, err := x.create(x.bindTo("orders", "who", subscriber, "g"),
			&topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: hookURL}})
		testkit.Must(t, err)
		x.publish("orders", 0, 1)
		away.Store(true)
		pass(time.Minute)
		away.Store(false)
		pass(15 * time.Second)
		testkit.Equal(t, "requests", x.hooks.taken(), "0")
		suspended.Store(true)
		pass(2 * pushCheck)
		for range 2 {
			x.publish("orders", 1, 1)
			pass(15 * time.Second)
			testkit.Equal(t, "requests", x.hooks.taken(), "")
			s := x.pushState(topicv1.PushState_PUSH_STATE_STOPPED)
			if !strings.Contains(s.GetText(), "suspended or deleted") {
				t.Errorf("text %q", s.GetText())
			}
			x.restart()
		}
		suspended.Store(false)
		pass(15 * time.Second)
		testkit.Equal(t, "requests of the user who is back", x.hooks.taken(), "1 1")
		x.pushState(topicv1.PushState_PUSH_STATE_OK)
	})
}

// Whoever may not use the group sets no webhook for it.
func TestWebhookNeedsTheRole(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, _ string) {
		other := x.bindTo("orders", "other", subscriber, "h")
		_, err := x.set(other, &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: hookURL + "/mine"}})
		refusedAs(t, err, refusal.TopicForbidden)
		testkit.Equal(t, "url", x.subscription("orders", "g").GetConfig().GetPush().GetUrl(), hookURL)
	})
}

// Another change of the subscription leaves the webhook to the user who has set it.
func TestOtherSettingsKeepTheWebhook(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, secret string) {
		who := x.bindTo("orders", "who", subscriber, "g")
		_, err := x.set(who, retries(9))
		testkit.Must(t, err)
		x.bindTo("orders", "who", publisher)
		x.publish("orders", 0, 1)
		pass(15 * time.Second)
		list := x.hooks.take()
		if len(list) != 1 || !list[0].verifies(secret) {
			t.Errorf("requests %v", list)
		}
	})
}

// After a restart the server goes on by itself: no call opens the topic. Idle topics are pushed as well.
func TestPushAfterARestart(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, secret string) {
		x.hooks.leave()
		x.publish("orders", 0, 20)
		pass(time.Minute)
		x.restart()
		x.hooks.back()
		pass(5 * time.Second)
		list := x.hooks.take()
		testkit.Equal(t, "requests", len(list), 20)
		if !list[0].verifies(secret) {
			t.Error("the secret is another one")
		}
		pass(2 * time.Hour) // a topic that is not in use closes after ten minutes
		x.publish("orders", 20, 1)
		pass(time.Second)
		testkit.Equal(t, "requests", x.hooks.taken(), "20")
	})
}

// A server that ends waits for answers that are under way, for a moment, and acknowledges them: they are not
// repeated. What is not answered by then goes back without an attempt.
func TestPushWhileTheServerEnds(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, _ string) {
		x.publish("orders", 0, 1)
		pass(time.Second)
		x.hooks.answers(func(p pushedRequest) int {
			if p.payload() == "2" {
				<-p.ctx.Done()
				return 200
			}
			time.Sleep(pushDrain / 2)
			return 200
		})
		x.publish("orders", 1, 2)
		pass(time.Millisecond)
		testkit.Equal(t, "requests", x.hooks.taken(), "0 1 2")
		began := time.Now()
		x.restart()
		if took := time.Since(began); took > pushDrain+time.Second {
			t.Errorf("the end took %s of simulated time", took)
		}
		x.hooks.always(200)
		pass(time.Second)
		list := x.hooks.take()
		if len(list) != 1 || list[0].payload() != "2" || list[0].GetAttempt() != 1 {
			t.Errorf("requests after the restart: %v", list)
		}
	})
}

// After a loss of power each message that was published is pushed at least once, whatever was under way. What the
// webhook gets after the moment of the loss does not count: that process was not there any more.
func TestPushAndPowerLoss(t *testing.T) {
	const seed, losses, each = 23, 6, 100
	rng := rand.New(rand.NewPCG(seed, 0))
	pushing(t, nil, func(t *testing.T, x *fixture, _ string) {
		var mu sync.Mutex
		seen, lost, n := map[string]bool{}, false, 0
		x.hooks.answers(func(p pushedRequest) int {
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if n++; n%7 == 0 || lost {
				return 500
			}
			seen[p.payload()] = true
			return 200
		})
		power := func(off bool) {
			mu.Lock()
			defer mu.Unlock()
			lost = off
		}
		for i := range losses {
			x.publish("orders", each*i, each)
			pass(time.Duration(rng.IntN(300)) * time.Millisecond)
			power(true)
			disk := x.disk.PowerLoss(rng)
			x.stop()
			x.disk = disk
			power(false)
			x.start()
		}
		pass(10 * time.Minute)
		testkit.Equal(t, "messages", len(seen), losses*each)
		testkit.Equal(t, "pending", x.pending(), 0)
	})
}

// After a restore of a backup positions are given again. A message that has one of them has another id than the
// message that had it before: a receiver that passes over ids that it has seen must not pass over it.
func TestPushAfterARestore(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	pushing(t, nil, func(t *testing.T, x *fixture, _ string) {
		pass(time.Minute) // all is synced
		backup := x.disk.PowerLoss(rng)
		x.publish("orders", 0, 1)
		pass(time.Second)
		before := x.hooks.take()
		x.stop()
		x.disk = backup
		x.start()
		x.publish("orders", 0, 1)
		pass(2 * time.Second)
		after := x.hooks.take()
		if len(before) != 1 || len(after) != 1 {
			t.Fatalf("%d and %d requests", len(before), len(after))
		}
		testkit.Equal(t, "position", after[0].GetMessage().GetMessageId(), before[0].GetMessage().GetMessageId())
		if after[0].id == before[0].id {
			t.Error("the id was used for another message")
		}
	})
}

// All of a message tells it apart from others at its position. The order of its headers does not count.
func TestIDOfAPushedMessage(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("orders", "g")
		topic, sub := x.engine.Catalog.Topic("orders"), x.subscription("orders", "g")
		id := func(change func(m *topicv1.TopicMessage)) string {
			m := &topicv1.TopicMessage{Payload: []byte("a"), PublishTime: timestamppb.New(time.UnixMilli(7)),
				Headers: map[string]string{}}
			for i := range 20 {
				m.Headers[fmt.Sprint(i)] = "v"
			}
			change(m)
			return pushID(topic, sub, &topicv1.StoredMessage{MessageId: "0-1", Message: m}, 0)
		}
		same := id(func(*topicv1.TopicMessage) {})
		for range 20 {
			testkit.Equal(t, "id of a repetition", id(func(m *topicv1.TopicMessage) {
				m.PublishTime = timestamppb.New(time.UnixMilli(7).Add(time.Microsecond))
			}), same)
		}
		for what, change := range map[string]func(m *topicv1.TopicMessage){
			"payload": func(m *topicv1.TopicMessage) { m.Payload = []byte("b") },
			"key":     func(m *topicv1.TopicMessage) { m.Key = "a" },
			"header":  func(m *topicv1.TopicMessage) { m.Headers["1"] = "w" },
			"time":    func(m *topicv1.TopicMessage) { m.PublishTime = timestamppb.New(time.UnixMilli(8)) },
		} {
			if id(change) == same {
				t.Errorf("a message with another %s has the id", what)
			}
		}
	})
}

// A topic that is deleted ends its webhooks, and one of its name begins without them.
func TestDeletedTopicIsNotPushed(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, _ string) {
		testkit.Must(t, x.Delete(t.Context(), op, "orders"))
		x.groups("orders", "g")
		x.publish("orders", 0, 1)
		pass(time.Minute)
		testkit.Equal(t, "requests", x.hooks.taken(), "")
		x.want(x.attach("orders", "g", "m"), "0")
	})
}

// A row of a release without webhooks is one without a webhook, and one that such a release has written in place
// of one with a webhook is a group that is pulled.
func TestRowsWithoutWebhooks(t *testing.T) {
	pushing(t, nil, func(t *testing.T, x *fixture, _ string) {
		x.publish("orders", 0, 1)
		pass(time.Second)
		topic := x.engine.Catalog.Topic("orders")
		lock := topic.Changing()
		old := *topic.Subscription("g")
		config := retries(3)
		config.Start, config.HeartbeatInterval, config.HeartbeatTimeout = old.Config.GetStart(), seconds(60), seconds(300)
		old.Config, old.Push = config, nil // it knows neither
		testkit.Must(t, x.engine.Catalog.Put(t.Context(), topic, &old))
		lock.End()
		x.restart()
		x.hooks.take()
		x.publish("orders", 1, 1)
		pass(time.Minute)
		testkit.Equal(t, "requests", x.hooks.taken(), "")
		x.want(x.attach("orders", "g", "m"), "1")
	})
}
