package relay_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/lease"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/relay/partitioncount"
)

// outage is a broker in simulated time that can stop answering, like a stopped process, or
// refuse connections, like one that has ended.
type outage struct {
	network kfake.VirtualNetwork
	cluster *kfake.Cluster

	mu     sync.Mutex
	silent chan struct{} // no request is answered until it is closed, unless nil
	down   bool
	conns  []net.Conn
}

func newOutage(t *testing.T) *outage {
	t.Helper()
	o := &outage{}
	options := []kfake.Opt{kfake.NumBrokers(1), kfake.ListenFn(o.network.Listen)}
	for _, topic := range kafka.Topics() {
		options = append(options, kfake.SeedTopics(topic.Partitions, topic.Name))
	}
	var err error
	if o.cluster, err = kfake.NewCluster(options...); err != nil {
		t.Fatal(err)
	}
	o.cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		o.cluster.KeepControl()
		o.mu.Lock()
		silent := o.silent
		o.mu.Unlock()
		if silent != nil {
			<-silent
		}
		return nil, nil, false
	})
	return o
}

func (o *outage) dial(ctx context.Context, network, host string) (net.Conn, error) {
	o.mu.Lock()
	down := o.down
	o.mu.Unlock()
	if down {
		return nil, syscall.ECONNREFUSED
	}
	c, err := o.network.DialContext(ctx, network, host)
	if err == nil {
		o.mu.Lock()
		o.conns = append(o.conns, c)
		o.mu.Unlock()
	}
	return c, err
}

// begin starts the outage and returns a function that ends it.
func (o *outage) begin(silent bool) (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if silent {
		o.silent = make(chan struct{})
		return func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			close(o.silent)
			o.silent = nil
		}
	}
	o.down = true
	for _, c := range o.conns {
		_ = c.Close()
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.down = false
	}
}

// value reads a metric as Prometheus does; labels in braces are part of the name.
func value(t *testing.T, m *telemetry.Metrics, name string) float64 {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(rec.Body.String())
	if found == nil {
		return 0
	}
	v, err := strconv.ParseFloat(found[1], 64)
	testkit.Must(t, err)
	return v
}

// lockedLog is a log that may be read while it is written.
type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

// When brokers do not answer or refuse connections, Kafka's client retries for a long time.
// The metrics show it nevertheless: an attempt without success counts as a failure after 10 s
// and for each further 10 s, and the backlog is counted in the store without any nudges (EV68).
func TestOutageIsSeenInTheMetrics(t *testing.T) {
	ids, err := registry.New(storetest.NewMemory(time.Now)).Events(t.Context())
	testkit.Must(t, err)
	serde, err := event.NewSerde(ids, nil)
	testkit.Must(t, err)
	for name, silent := range map[string]bool{"no answer": true, "refused": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { outageIsSeen(t, serde, silent) })
		})
	}
}

func outageIsSeen(t *testing.T, serde *event.Serde, silent bool) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	o := newOutage(t)
	defer o.cluster.Close()
	publisher, err := kafka.NewPublisher(o.cluster.ListenAddrs()[0], "parley-relay-0", kgo.Dialer(o.dial))
	testkit.Must(t, err)
	defer publisher.Close()
	st, set, metrics, log := storetest.NewMemory(time.Now), &relay.Set{}, telemetry.NewMetrics(), &lockedLog{}
	observe.Relay(metrics, set, &lease.Manager{}, &partitioncount.Watch{})
	chats, err := chat.New(ctx, chat.Config{Store: st, Clock: time.Now, Generation: "g", Producer: "p"})
	testkit.Must(t, err)
	testkit.Must(t, chats.EnsureUser(ctx, "alice"))
	testkit.Must(t, chats.EnsureUser(ctx, "bob"))
	group := func() {
		t.Helper()
		_, err := chats.CreateGroup(ctx, chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		testkit.Must(t, err)
	}
	r, err := relay.New(relay.Config{
		Store: st, Serde: serde, Publish: relay.Flatten(publisher.Publish), Failed: metrics.Chats().PublishFailed,
		Clock:  time.Now,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	testkit.Must(t, err)
	defer set.Add(r)()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()

	group()
	testkit.Advance(5 * time.Second)
	if n := value(t, metrics, "parley_relay_published_total"); n != 2 {
		t.Fatalf("%v records are published, expected 2", n)
	}
	end := o.begin(silent)
	group()
	testkit.Advance(5 * time.Second) // the sweep has found it
	group()
	group()
	testkit.Advance(7 * time.Second)
	const created = `parley_kafka_lifecycle_publish_failures_total{event_type="ChatCreated"}`
	first, events := value(t, metrics, "parley_relay_failures_total"), value(t, metrics, created)
	if first < 1 || events < 1 {
		t.Errorf("12 s into the outage: %v failures of %v events, expected at least 1 of each", first, events)
	}
	testkit.Advance(10 * time.Second)
	if n := value(t, metrics, "parley_relay_backlog_rows"); n < 3 {
		t.Errorf("the backlog metric is %v rows, expected at least 3", n)
	}
	if age := value(t, metrics, "parley_relay_oldest_seconds"); age < 20 || age > 22 {
		t.Errorf("the oldest row is %v s old by the metric, expected 20 to 22", age)
	}
	testkit.Advance(98 * time.Second)
	if n := value(t, metrics, "parley_relay_failures_total"); n < first+8 || n > first+12 {
		t.Errorf("%v failures at first and %v after 108 s, expected 8 to 12 more", first, n)
	}
	if n := log.count("lifecycle_event_publish_failed"); n < 2 || n > 8 {
		t.Errorf("%d lines in the log after two minutes, expected 2 to 8", n)
	}
	end()
	testkit.Advance(3 * time.Minute)
	last := value(t, metrics, "parley_relay_failures_total")
	if n := value(t, metrics, "parley_relay_backlog_rows"); n != 0 {
		t.Errorf("the backlog metric is %v rows three minutes after the outage, expected 0", n)
	}
	if n := value(t, metrics, "parley_relay_published_total"); n < 8 {
		t.Errorf("%v records are published, expected 8", n)
	}
	testkit.Advance(time.Minute)
	if n := value(t, metrics, "parley_relay_failures_total"); n != last {
		t.Errorf("%v failures in a minute without an outage, expected none", n-last)
	}
	stop()
	<-done
}
