package topic

import (
	"bytes"
	"context"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/egress"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/push"
)

// BenchmarkPush publishes b.N messages of 300 bytes, 100 at a time, and has them delivered to one group: to a member
// that pulls them and acknowledges each delivery, or one by one to a webhook on this machine, whose server runs in this
// process, too. request is the cost of such requests alone, as many at a time, without topics.
func BenchmarkPush(b *testing.B) {
	b.Run("pulled", func(b *testing.B) {
		benchDelivery(b, topicv1.CompletionMode_COMPLETION_MODE_REFERENCE_COUNTING, 1)
	})
	for name, begin := range map[string]func(*httptest.Server){
		"http": (*httptest.Server).Start, "https": (*httptest.Server).StartTLS,
	} {
		b.Run(name, func(b *testing.B) { benchPush(b, newReceiver(b, begin)) })
		b.Run(name+"-request", func(b *testing.B) { benchRequests(b, newReceiver(b, begin)) })
	}
}

// receiver is a webhook that counts requests.
type receiver struct {
	server *httptest.Server
	guard  *egress.Guard
	want   int64
	n      atomic.Int64
	conns  atomic.Int64
	all    chan struct{}
}

func newReceiver(b *testing.B, begin func(*httptest.Server)) *receiver {
	b.Helper()
	r := &receiver{want: int64(b.N), all: make(chan struct{})}
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		if r.n.Add(1) == r.want {
			close(r.all)
		}
	}))
	r.server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that the end of the benchmark cuts off
	r.server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			r.conns.Add(1)
		}
	}
	begin(r.server)
	b.Cleanup(r.server.Close)
	cfg := egress.Config{Loopback: true}
	if c := r.server.Certificate(); c != nil {
		cfg.Roots = x509.NewCertPool()
		cfg.Roots.AddCert(c)
	}
	r.guard = egress.New(cfg)
	b.Cleanup(r.guard.Close)
	return r
}

func benchPush(b *testing.B, r *receiver) {
	s := benchService(b, func(c *Config) { c.Push = push.NewSender(r.guard, time.Now) })
	ctx := b.Context()
	_, err := s.Configure(ctx, op, &topicv1.ConfigureTopicRequest{Topic: "t",
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
	testkit.Must(b, err)
	_, err = s.CreateSubscription(ctx, op, &topicv1.CreateSubscriptionRequest{Topic: "t", Group: "g",
		Config: &topicv1.SubscriptionConfig{Push: &topicv1.PushConfig{Url: r.server.URL + "/"}}})
	testkit.Must(b, err)
	payload := make([]byte, 300)
	b.ResetTimer()
	start, before := time.Now(), cpu()
	for from := 0; from < b.N; from += 100 {
		list := make([]*topicv1.TopicMessage, min(100, b.N-from))
		for i := range list {
			list[i] = &topicv1.TopicMessage{Payload: payload}
		}
		_, err := s.Publish(ctx, op, &topicv1.PublishRequest{Topic: "t", Messages: list})
		testkit.Must(b, err)
	}
	<-r.all
	r.report(b, start, before)
}

// benchRequests sends requests of the size of a push to a webhook, as many at a time as a group has.
func benchRequests(b *testing.B, r *receiver) {
	body := make([]byte, 700)
	var next atomic.Int64
	b.ResetTimer()
	start, before := time.Now(), cpu()
	var senders sync.WaitGroup
	for range push.PerHost {
		senders.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if err := r.post(b.Context(), body); err != nil {
					b.Error(err)
				}
			}
		})
	}
	senders.Wait()
	r.report(b, start, before)
}

// post sends a request as the sender of a webhook does, without a signature.
func (r *receiver) post(ctx context.Context, body []byte) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, r.server.URL+"/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := r.guard.Do(q)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

func (r *receiver) report(b *testing.B, start time.Time, before time.Duration) {
	b.Helper()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "deliveries/s")
	b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N), "cpu-ns/delivery")
	b.ReportMetric(float64(r.conns.Load())/float64(b.N), "connections/delivery")
}
