package push

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/egress"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/serving"
)

// backlog is the session of a group with any number of messages.
type backlog struct {
	received, acked, nacked, returned atomic.Int64
}

func (b *backlog) Receive(_ context.Context, limit int) (serving.Event, error) {
	var list []serving.Delivery
	for range limit {
		body, err := proto.Marshal(&topicv1.TopicMessage{Payload: []byte("a")})
		if err != nil {
			return serving.Event{}, err
		}
		piece := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), body)
		list = append(list, serving.Delivery{Base: b.received.Add(1), Count: 1, Pieces: [][]byte{piece}})
	}
	return serving.Event{Deliveries: list}, nil
}

func (b *backlog) Ack(context.Context, *topicv1.AckSet) ([]*topicv1.Refusal, error) {
	b.acked.Add(1)
	return nil, nil
}

func (b *backlog) Nack(context.Context, *topicv1.NackSet) ([]*topicv1.Refusal, error) {
	b.nacked.Add(1)
	return nil, nil
}

func (*backlog) Extend(context.Context, *topicv1.ExtendSet) ([]*topicv1.Refusal, error) {
	return nil, nil
}
func (b *backlog) Return(list []serving.Delivery) { b.returned.Add(int64(len(list))) }
func (*backlog) Touch()                           {}
func (*backlog) Ended() string                    { return "" }

// doing answers requests.
type doing func(r *http.Request) (*http.Response, error)

func (f doing) Do(r *http.Request) (*http.Response, error) { return f(r) }
func (doing) Check(string) error                           { return nil }

// worker is one for a webhook of a principal at a host, which runs until the test ends.
func worker(t *testing.T, s *Sender, b *backlog, principal, host string) *atomic.Pointer[topicv1.PushStatus] {
	t.Helper()
	status := &atomic.Pointer[topicv1.PushStatus]{}
	w := NewWorker(Config{
		Sender: s, Session: b, Topic: "t", Group: "g", Principal: principal, Lease: time.Minute,
		Target: func() Target { return Target{URL: "https://" + host + "/", Secrets: []string{NewSecret()}} },
		ID:     func(m *topicv1.StoredMessage, _ int64) string { return m.GetMessageId() },
		Gone:   func(context.Context, string) error { return nil },
		Report: func(s *topicv1.PushStatus, _ bool) { status.Store(s) },
		Logger: slog.New(slog.DiscardHandler), Clock: time.Now,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx, ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return status
}

func ok() *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(nil))}
}

// The webhooks of one principal, which all hang, take no place of another principal. Of a group that waits for a
// slot, one message waits, and the session keeps the others.
func TestWebhooksOfAPrincipalThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hanging atomic.Int64
		s := NewSender(doing(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "ben.example.com" {
				time.Sleep(100 * time.Millisecond)
				return ok(), nil
			}
			hanging.Add(1)
			defer hanging.Add(-1)
			<-r.Context().Done()
			return nil, r.Context().Err()
		}), time.Now)
		groups := make([]backlog, MaxRequests+10)
		for i := range groups {
			worker(t, s, &groups[i], "ann", fmt.Sprint("ann", i, ".example.com"))
		}
		var ben backlog
		worker(t, s, &ben, "ben", "ben.example.com")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		testkit.Equal(t, "requests that hang", hanging.Load(), PerPrincipal)
		for i := range groups {
			testkit.Equal(t, "messages in hand", groups[i].received.Load()-groups[i].returned.Load(), 1)
		}
		if n := ben.acked.Load(); n < 100 {
			t.Errorf("another principal's webhook got %d messages in five seconds", n)
		}
	})
}

// An address with as many connections as it may have is no failure of the webhook: the message goes back.
func TestBusyAddressIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		s := NewSender(doing(func(*http.Request) (*http.Response, error) {
			time.Sleep(time.Second)
			if n.Add(1) > 1 {
				return nil, fmt.Errorf("post: %w", egress.ErrBusy)
			}
			return ok(), nil
		}), time.Now)
		var b backlog
		status := worker(t, s, &b, "ann", "ann.example.com")
		time.Sleep(time.Minute)
		synctest.Wait()
		testkit.Equal(t, "acknowledged", b.acked.Load(), 1)
		testkit.Equal(t, "failed", b.nacked.Load(), 0)
		testkit.Equal(t, "state", status.Load().GetState(), topicv1.PushState_PUSH_STATE_OK)
		if b.returned.Load() < 10 {
			t.Errorf("%d messages went back", b.returned.Load())
		}
	})
}
