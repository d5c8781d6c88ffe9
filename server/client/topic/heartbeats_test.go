package topic_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// away is an HTTP client whose server does not answer, but for heartbeats that a test
// answers.
type away struct {
	answer func(n int) *topicv1.HeartbeatResponse // to heartbeat n; nil: none

	mu         sync.Mutex
	heartbeats []time.Time // when each began
}

func (a *away) Do(r *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(r.URL.Path, "/Heartbeat") {
		return nil, errors.New("connection refused")
	}
	a.mu.Lock()
	a.heartbeats = append(a.heartbeats, time.Now())
	n := len(a.heartbeats)
	a.mu.Unlock()
	if res := a.answer(n); res != nil {
		body, err := proto.Marshal(res)
		return &http.Response{StatusCode: 200, Proto: "HTTP/2.0", ProtoMajor: 2, Body: io.NopCloser(bytes.NewReader(body)),
			Header: http.Header{"Content-Type": {"application/proto"}}, Request: r}, err
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// run runs a consumer until it ends by itself.
func (a *away) run(t *testing.T, log io.Writer) error {
	t.Helper()
	c, err := topic.Dial(topic.Config{BaseURL: "http://away", HTTP: a,
		Token: func(context.Context, bool) (string, error) { return "t", nil }})
	testkit.Must(t, err)
	consumer, err := c.Consumer("t", "g", topic.ConsumerConfig{
		Log:     slog.New(slog.NewTextHandler(log, nil)),
		Handler: func(context.Context, *topic.Received) error { return nil }})
	testkit.Must(t, err)
	return consumer.Run(t.Context())
}

// HQ-L17, HQ-L18, HQ-L19, HQ-L20: a heartbeat has 5 s; after a failure the next one
// follows after a pause that doubles, with a warning that counts; after 10 in a row the
// consumer stops.
func TestHeartbeatsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a := &away{answer: func(int) *topicv1.HeartbeatResponse { return nil }}
		began := time.Now()
		if err := a.run(t, &log); !errors.Is(err, topic.ErrHeartbeat) {
			t.Error(err)
		}
		testkit.Equal(t, "heartbeats", len(a.heartbeats), 10)
		at := began.Add(time.Minute)
		for i, pause := range []int{0, 1, 2, 4, 8, 16, 32, 60, 60, 60} {
			at = at.Add(time.Duration(pause) * time.Second)
			testkit.Equal(t, "heartbeat", a.heartbeats[i].Sub(began), at.Sub(began))
			at = at.Add(5 * time.Second) // until it was given up
		}
		testkit.Equal(t, "the end", time.Since(began), at.Sub(began))
		for _, want := range []string{"failures=1/10", "failures=9/10", "failures=10/10"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %s: %s", want, log.String())
			}
		}
	})
}

// HQ-L20: fewer failures in a row do not end it, and an answer resets the count.
func TestHeartbeatsRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &away{answer: func(n int) *topicv1.HeartbeatResponse {
			if n == 10 {
				return &topicv1.HeartbeatResponse{State: topicv1.SubscriptionState_SUBSCRIPTION_STATE_ACTIVE}
			}
			return nil
		}}
		if err := a.run(t, io.Discard); !errors.Is(err, topic.ErrHeartbeat) {
			t.Error(err)
		}
		testkit.Equal(t, "heartbeats", len(a.heartbeats), 20)
		testkit.Equal(t, "pause after the answer", a.heartbeats[10].Sub(a.heartbeats[9]), time.Minute)
	})
}

// HQ-L07: a heartbeat that says that the subscription has ended ends the consumer.
func TestHeartbeatOfTheCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &away{answer: func(int) *topicv1.HeartbeatResponse {
			return &topicv1.HeartbeatResponse{State: topicv1.SubscriptionState_SUBSCRIPTION_STATE_CANCELLED}
		}}
		if err := a.run(t, io.Discard); !errors.Is(err, topic.ErrSubscriptionGone) {
			t.Error(err)
		}
		testkit.Equal(t, "heartbeats", len(a.heartbeats), 1)
	})
}
