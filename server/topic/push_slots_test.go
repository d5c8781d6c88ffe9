package topic_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic"
)

// countedHook is a webhook that counts how often each message comes.
type countedHook struct {
	mu    sync.Mutex
	times map[string]int
}

func (c *countedHook) Check(string) error { return nil }

func (c *countedHook) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	p := &topicv1.PushedMessage{}
	if err := protojson.Unmarshal(body, p); err != nil {
		return nil, err
	}
	select {
	case <-time.After(50 * time.Millisecond):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times[p.GetTopic()+" "+string(p.GetMessage().GetMessage().GetPayload())]++
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(nil))}, nil
}

// The owner of a slot pushes. When slots go to another process, that one goes on by itself, whether the earlier
// owner stopped in order, and then nothing is repeated, or lost its lease.
func TestPushByTheOwnerOfASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4)
		hook := &countedHook{times: map[string]int{}}
		c.Push = topic.NewPushSender(hook, time.Now)
		defer c.Close()
		a := c.Start("a")
		synctest.Wait()
		const topics, each = 8, 20
		for i := range topics {
			name := fmt.Sprintf("topic-%d", i)
			c.topic(name)
			c.do(name, func(s *topic.Service) error {
				_, err := s.CreateSubscription(t.Context(), op, &topicv1.CreateSubscriptionRequest{Topic: name, Group: "g",
					Config: &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: "https://hooks.example.com/"}}})
				return err
			})
		}
		publish := func(round int) {
			for i := range topics {
				for n := range each {
					c.mustPublish(fmt.Sprintf("topic-%d", i), fmt.Sprint(round*each+n))
				}
			}
		}
		all := func(when string, rounds int) (highest int) {
			t.Helper()
			hook.mu.Lock()
			defer hook.mu.Unlock()
			testkit.Equal(t, when+": messages", len(hook.times), rounds*topics*each)
			for _, n := range hook.times {
				highest = max(highest, n)
			}
			return highest
		}
		publish(0)
		testkit.Advance(10 * time.Second)
		all("one process", 1)
		b := c.Start("b")
		testkit.Advance(time.Minute)
		publish(1)
		a.Stop()
		testkit.Must(t, b.Refresh(t.Context()))
		testkit.Advance(time.Minute)
		testkit.Equal(t, "deliveries of a message after the end in order", all("a has stopped", 2), 1)
		c.Start("d")
		testkit.Advance(time.Minute)
		publish(2)
		b.Gate.Set(true)
		testkit.Advance(2 * time.Minute)
		all("b hangs", 3)
		b.Gate.Set(false)
		testkit.Advance(time.Minute)
		publish(3)
		testkit.Advance(time.Minute)
		all("b is back", 4)

	})
}
