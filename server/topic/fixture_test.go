package topic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/topic/refusal"
)

var (
	op     = Caller{Principal: "operator", Operator: true}
	maker  = Caller{Principal: "maker", Creator: true}
	nobody = Caller{Principal: "nobody"}
)

// fixture is a Service on the embedded engine, whose disk stays when the process ends.
type fixture struct {
	*Service
	t      testing.TB
	disk   *embeddedtest.Disk
	store  *embedded.Store
	wrap   func(store.Store) store.Store
	over   func(commitlog.Log) commitlog.Log
	logs   *lines
	audit  *lines
	stop   func()
	ends   error                           // that the process ends with
	hooks  *hooks                          // nil: nothing is pushed
	barred func(user string) (bool, error) // nil: no user is suspended
	ahead  atomic.Int64                    // of the clock of the service and its log, in ns
}

type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// bubble runs a test in simulated time, with a running Service.
func bubble(t *testing.T, f func(t *testing.T, x *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { unbubbled(t, f) })
}

// unbubbled runs a test in real time: of one whose goroutines are always busy.
func unbubbled(t *testing.T, f func(t *testing.T, x *fixture)) {
	t.Helper()
	x := &fixture{t: t, disk: embeddedtest.NewDisk(nil), logs: &lines{}, audit: &lines{}}
	x.start()
	defer func() { x.stop() }()
	f(t, x)
}

// start opens the store and runs a Service.
func (x *fixture) start() {
	x.t.Helper()
	x.store = x.disk.Open(x.t, time.Now)
	var st store.Store = x.store
	if x.wrap != nil {
		st = x.wrap(st)
	}
	clock := func() time.Time { return time.Now().Add(time.Duration(x.ahead.Load())) }
	var log commitlog.Log = commitlog.NewLocal(records.Of(x.store), clock)
	if x.over != nil {
		log = x.over(log)
	}
	var sender *PushSender
	if x.hooks != nil {
		sender = NewPushSender(x.hooks, clock)
	}
	s, err := New(x.t.Context(), Config{
		Push: sender,
		Refused: func(_ context.Context, user string) (bool, error) {
			if x.barred == nil {
				return false, nil
			}
			return x.barred(user)
		},
		Store: st, Log: log,
		Clock:  clock,
		Logger: slog.New(slog.NewTextHandler(x.logs, nil)),
		Audit: func(_ context.Context, actor, call, request string) (func(code, result string), error) {
			return func(code, result string) { fmt.Fprintln(x.audit, actor, call, request, code, result) }, nil
		},
	})
	if err != nil {
		x.t.Fatal(err)
	}
	x.Service = s
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func() {}) }()
	x.stop = func() {
		cancel()
		if err := <-done; !errors.Is(err, x.ends) {
			x.t.Error(err)
		}
	}
}

// restart ends the process and begins another one. With power, what was not synced may be
// lost.
func (x *fixture) restart() {
	x.t.Helper()
	x.stop()
	if err := x.store.Close(); err != nil {
		x.t.Fatal(err)
	}
	x.start()
}

func (x *fixture) configure(name string, c *topicv1.TopicConfig) *topicv1.Topic {
	x.t.Helper()
	r, err := x.Configure(x.t.Context(), op, &topicv1.ConfigureTopicRequest{Topic: name, Config: c})
	if err != nil {
		x.t.Fatal(err)
	}
	return r.GetTopic()
}

// groups makes a topic with groups.
func (x *fixture) groups(name string, groups ...string) {
	x.t.Helper()
	x.configure(name, &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB})
	for _, g := range groups {
		x.subscribe(name, g, nil)
	}
}

func (x *fixture) subscribe(name, group string, c *topicv1.SubscriptionConfig) *topicv1.Subscription {
	x.t.Helper()
	r, err := x.CreateSubscription(x.t.Context(), op,
		&topicv1.CreateSubscriptionRequest{Topic: name, Group: group, Config: c})
	if err != nil {
		x.t.Fatal(err)
	}
	return r.GetSubscription()
}

func messages(from, n int) []*topicv1.TopicMessage {
	list := make([]*topicv1.TopicMessage, n)
	for i := range list {
		list[i] = &topicv1.TopicMessage{Payload: fmt.Appendf(nil, "%d", from+i)}
	}
	return list
}

// publish stores messages with the numbers from from on as payloads.
func (x *fixture) publish(name string, from, n int) []*topicv1.PublishResult {
	x.t.Helper()
	r, err := x.Publish(x.t.Context(), op, &topicv1.PublishRequest{Topic: name, Messages: messages(from, n)})
	if err != nil {
		x.t.Fatal(err)
	}
	return r.GetResults()
}

func (x *fixture) attach(name, group, member string) *Session {
	x.t.Helper()
	s, err := x.Attach(x.t.Context(), op, &topicv1.Attach{Topic: name, Group: group, Member: member}, false)
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

// got is a message that was delivered.
type got struct {
	partition int32
	position  int64
	attempt   uint32
	payload   string
	message   *topicv1.TopicMessage
}

// read decodes deliveries as a client does.
func read(t testing.TB, deliveries []Delivery) (list []got) {
	t.Helper()
	for _, d := range deliveries {
		n := 0
		for _, piece := range d.Pieces {
			for len(piece) > 0 {
				_, _, tag := protowire.ConsumeTag(piece)
				body, size := protowire.ConsumeBytes(piece[tag:])
				m := &topicv1.TopicMessage{}
				if err := proto.Unmarshal(body, m); err != nil {
					t.Fatal(err)
				}
				g := got{d.Partition, d.Base + int64(n), 1, string(m.GetPayload()), m}
				if d.Offsets != nil {
					g.position = d.Base + int64(d.Offsets[n])
				}
				if d.Attempts != nil {
					g.attempt = d.Attempts[n]
				}
				list = append(list, g)
				piece = piece[tag+size:]
				n++
			}
		}
		if n != d.Count {
			t.Fatalf("%d messages, not %d", n, d.Count)
		}
	}
	return list
}

// receive collects what comes until nothing does for a second.
func (x *fixture) receive(s *Session) (list []got) {
	x.t.Helper()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		e, err := s.Receive(ctx, 1000)
		cancel()
		if err != nil || e.Gone != "" {
			return list
		}
		list = append(list, read(x.t, e.Deliveries)...)
	}
}

func at(list []got) *topicv1.AckSet {
	set := &topicv1.AckSet{}
	for _, g := range list {
		set.Positions = append(set.Positions, &topicv1.Positions{Partition: g.partition, Base: g.position})
	}
	return set
}

func (x *fixture) ack(s *Session, list []got) []*topicv1.Refusal {
	x.t.Helper()
	if len(list) == 0 {
		return nil
	}
	r, err := s.Ack(x.t.Context(), at(list))
	if err != nil {
		x.t.Fatal(err)
	}
	return r
}

// work receives and acknowledges until nothing comes for a second.
func (x *fixture) work(s *Session) (list []got) {
	x.t.Helper()
	for {
		had := x.receive(s)
		if len(had) == 0 {
			return list
		}
		x.ack(s, had)
		list = append(list, had...)
	}
}

func payloads(list []got) string {
	var b strings.Builder
	for i, g := range list {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(g.payload)
	}
	return b.String()
}

func numbers(from, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprint(&b, from+i)
	}
	return b.String()
}

func (x *fixture) want(s *Session, want string) []got {
	x.t.Helper()
	list := x.receive(s)
	if p := payloads(list); p != want {
		x.t.Fatalf("received %q, want %q", p, want)
	}
	return list
}

func (x *fixture) state(name, group string) topicv1.SubscriptionState {
	x.t.Helper()
	return x.subscription(name, group).GetState()
}

func (x *fixture) subscription(name, group string) *topicv1.Subscription {
	x.t.Helper()
	s, err := x.Subscription(x.t.Context(), op, name, group)
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

func (x *fixture) status(name, id string) *topicv1.GetMessageStatusResponse {
	x.t.Helper()
	r, err := x.MessageStatus(x.t.Context(), op, &topicv1.GetMessageStatusRequest{Topic: name, MessageId: id})
	if err != nil {
		x.t.Fatal(err)
	}
	return r
}

func refusedAs(t testing.TB, err error, r refusal.Reason) {
	t.Helper()
	if !errors.Is(err, &refusal.Error{Reason: r}) {
		t.Errorf("%v, want %s", err, r)
	}
}

func seconds(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }

// metric returns what the metrics show of a group; the zero value if they do not show it.
func (x *fixture) metric(topic, group string) GroupValues {
	for _, v := range x.engine.Groups.Values(x.cfg.Clock()) {
		if v.Topic == topic && v.Group == group {
			return v
		}
	}
	return GroupValues{}
}
