package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/workers/consume"
)

var topicOperator = topic.Caller{Principal: "ops", Operator: true}

// topicFixture has dead letters of events and of topics.
type topicFixture struct {
	*fixture
	topics *topic.Service
}

func newTopicFixture(t *testing.T) *topicFixture {
	t.Helper()
	r := &topicFixture{fixture: newFixture(t)}
	r.now = time.Now()
	st := embeddedtest.NewDisk(nil).Open(t, time.Now)
	var err error
	r.topics, err = topic.New(t.Context(), topic.Config{
		Store: st, Log: commitlog.NewLocal(records.Of(st), time.Now), Clock: time.Now,
		Logger: slog.New(slog.DiscardHandler),
		Audit: func(context.Context, string, string, string) (func(code, result string), error) {
			return func(string, string) {}, nil
		},
	})
	testkit.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.topics.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		testkit.Must(t, <-done)
	})
	cfg := r.manager.cfg
	cfg.Topics = r.topics.DeadLetters()
	r.manager, err = New(cfg)
	testkit.Must(t, err)
	return r
}

// topic makes a topic with a group that gives everything up after one attempt.
func (r *topicFixture) topic(name, group string, c *topicv1.SubscriptionConfig) {
	r.t.Helper()
	if _, err := r.topics.Configure(r.t.Context(), topicOperator, &topicv1.ConfigureTopicRequest{
		Topic: name, Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}}); err != nil {
		r.t.Fatal(err)
	}
	if c == nil {
		c = &topicv1.SubscriptionConfig{}
	}
	c.Retry = &topicv1.RetryPolicy{MaxAttempts: 1}
	_, err := r.topics.CreateSubscription(r.t.Context(), topicOperator,
		&topicv1.CreateSubscriptionRequest{Topic: name, Group: group, Config: c})
	testkit.Must(r.t, err)
}

func (r *topicFixture) publish(name string, keys ...string) {
	r.t.Helper()
	req := &topicv1.PublishRequest{Topic: name}
	for i, k := range keys {
		req.Messages = append(req.Messages, &topicv1.TopicMessage{Key: k, Payload: fmt.Appendf(nil, "%s%d", k, i),
			Type: "placed", Headers: map[string]string{"mine": "secret"}})
	}
	_, err := r.topics.Publish(r.t.Context(), topicOperator, req)
	testkit.Must(r.t, err)
}

// take takes n messages of a group, and nacks them if they are to fail.
func (r *topicFixture) take(name, group string, n int, fail bool) (payloads []string) {
	r.t.Helper()
	s, err := r.topics.Attach(r.t.Context(), topicOperator, &topicv1.Attach{Topic: name, Group: group}, false)
	testkit.Must(r.t, err)
	defer s.End("DETACHED")
	for len(payloads) < n {
		ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
		e, err := s.Receive(ctx, 100)
		cancel()
		testkit.Must(r.t, err)
		for _, d := range e.Deliveries {
			for i := range d.Count {
				at := d.Base + int64(i)
				if d.Offsets != nil {
					at = d.Base + int64(d.Offsets[i])
				}
				set := []*topicv1.Positions{{Partition: d.Partition, Base: at}}
				if fail {
					_, err = s.Nack(r.t.Context(), &topicv1.NackSet{Positions: set, Reason: "bad"})
				} else {
					_, err = s.Ack(r.t.Context(), &topicv1.AckSet{Positions: set})
				}
				testkit.Must(r.t, err)
			}
			for _, piece := range d.Pieces {
				for len(piece) > 0 {
					_, _, tag := protowire.ConsumeTag(piece)
					body, size := protowire.ConsumeBytes(piece[tag:])
					m := &topicv1.TopicMessage{}
					testkit.Must(r.t, proto.Unmarshal(body, m))
					payloads, piece = append(payloads, string(m.GetPayload())), piece[tag+size:]
				}
			}
		}
	}
	return payloads
}

// deadLetters waits until there are n open dead letters of topics.
func (r *topicFixture) deadLetters(n int) (ids []string) {
	r.t.Helper()
	testkit.Eventually(r.t, "the dead letters", func() bool {
		ids = r.list(Filter{Source: Topics})
		return len(ids) == n
	})
	return ids
}

func (r *topicFixture) redrive(f Filter) Report {
	r.t.Helper()
	rep, err := r.manager.Redrive(r.t.Context(), f, Redrive{Actor: "ada", Rate: maxRate,
		Handlers: map[string]consume.Handler{"fanout": func(context.Context, *kafka.Record) error { return nil }}})
	testkit.Must(r.t, err)
	return rep
}

// One list has the dead letters of events and of topics, in pages; a filter chooses one
// kind. A topic's dead letter goes back to its group in the order of its key.
func TestTopicsBesideEvents(t *testing.T) {
	r := newTopicFixture(t)
	for n := range 3 {
		r.add("fanout", "chat", n)
	}
	r.topic("orders", "billing", nil)
	r.topic("parked", "billing", &topicv1.SubscriptionConfig{Ordering: topicv1.Ordering_ORDERING_KEY})
	r.publish("orders", "a", "b", "a", "")
	r.publish("parked", "p", "q")
	r.take("orders", "billing", 4, true)
	r.take("parked", "billing", 2, true)
	r.deadLetters(6)
	all := r.list(Filter{})
	if want := []string{"orders.dlq/0-0", "orders.dlq/0-1", "orders.dlq/0-2", "orders.dlq/0-3", "parked/0-0/billing",
		"parked/0-1/billing"}; len(all) != 9 || !slices.Equal(all[3:], want) {
		t.Fatalf("%v", all)
	}
	var paged []string
	for from := (Position{}); ; {
		p, err := r.manager.List(t.Context(), Filter{}, 2, from)
		testkit.Must(t, err)
		for _, l := range p.DeadLetters {
			paged = append(paged, l.ID())
		}
		if p.Next == nil {
			break
		}
		from = *p.Next
	}
	if !slices.Equal(paged, all) {
		t.Errorf("in pages: %v", paged)
	}
	for name, c := range map[string]struct {
		f    Filter
		want int
	}{
		"events": {Filter{Source: Events}, 3}, "topics": {Filter{Source: Topics}, 6},
		"topic": {Filter{Topic: "orders"}, 4},
		"group": {Filter{Group: "billing"}, 6}, "key": {Filter{Key: "a"}, 2}, "reason": {Filter{Reason: "bad"}, 4},
		"ids":  {Filter{IDs: []string{all[0], all[4], all[8], "nobody.dlq/0-0", "x"}}, 3},
		"late": {Filter{Before: time.Now().Add(-time.Hour), Source: Topics}, 2}, // it is not known when they failed
	} {
		if got := r.list(c.f); len(got) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	l, err := r.manager.Get(t.Context(), "orders.dlq/0-2")
	if err != nil || string(l.Record.Value) != "a2" || l.Record.Topic != "orders" || l.Record.Offset != 2 ||
		l.Group != "billing" ||
		l.Reason != "bad" || l.Type != "placed" || l.FailedAt.IsZero() || l.Parked || l.Attempts != 1 {
		t.Fatalf("%+v, %v", l, err)
	}
	if rep := r.redrive(Filter{IDs: []string{"orders.dlq/0-2"}}); rep.Behind != 1 || rep.Done != 0 {
		t.Errorf("before an earlier one of its key: %+v", rep)
	}
	if rep := r.redrive(Filter{Topic: "orders", Key: "a"}); rep.Done != 2 {
		t.Errorf("%+v", rep)
	}
	if got := r.take("orders", "billing", 2, false); !slices.Equal(got, []string{"a0", "a2"}) {
		t.Errorf("%v", got)
	}
	if rep := r.redrive(Filter{IDs: []string{"parked/0-1/billing"}}); rep.Done != 1 {
		t.Errorf("%+v", rep)
	}
	if got := r.take("parked", "billing", 1, false); !slices.Equal(got, []string{"q1"}) {
		t.Errorf("%v", got)
	}
	rep, err := r.manager.Discard(t.Context(), Filter{Source: Topics}, Discard{Actor: "ada", Reason: "no"})
	if err != nil || rep.Done != 3 {
		t.Errorf("%+v, %v", rep, err)
	}
	if rep := r.redrive(Filter{Source: Topics}); rep.Matched != 0 {
		t.Errorf("what is done with is redriven: %+v", rep)
	}
	r.deadLetters(0)
	l, err = r.manager.Get(t.Context(), "orders.dlq/0-0")
	if err != nil || l.Status != Redriven || l.Handling.By != "ada" {
		t.Errorf("%+v, %v", l, err)
	}
	l, err = r.manager.Get(t.Context(), "orders.dlq/0-3")
	if err != nil || l.Status != Discarded || l.Handling.Result != "no" {
		t.Errorf("%+v, %v", l, err)
	}
}

// crashing loses what is recorded after a dead letter was redriven, as a process that ends does.
type crashing struct {
	store.Store
	on bool
}

var errCrash = errors.New("crash")

func (c *crashing) Transact(ctx context.Context, p store.Plan) error {
	for _, w := range p.Writes {
		if c.on && w.Key.Table == store.DeadLetters && table.DeadLetterFrom(w.Item).Status == string(Redriven) {
			return errCrash
		}
	}
	return c.Store.Transact(ctx, p)
}

// A process that ends between putting a message back and noting it leaves a dead letter
// that is redriven again, and a message that its group gets once.
func TestTopicDeadLetterAfterACrash(t *testing.T) {
	r := newTopicFixture(t)
	c := &crashing{Store: r.store, on: true}
	r.manager.cfg.Store = c
	r.topic("orders", "billing", nil)
	r.publish("orders", "a", "a")
	r.take("orders", "billing", 2, true)
	r.deadLetters(2)
	_, err := r.manager.Redrive(t.Context(), Filter{Source: Topics}, Redrive{Actor: "ada"})
	if !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	c.on = false
	if rep := r.redrive(Filter{Source: Topics}); rep.Done != 0 || rep.Taken != 1 || rep.Behind != 1 {
		t.Errorf("the letter may still be under way: %+v", rep)
	}
	r.now = r.now.Add(claimFor + time.Second)
	if rep := r.redrive(Filter{Source: Topics}); rep.Done != 2 {
		t.Errorf("%+v", rep)
	}
	if got := r.take("orders", "billing", 2, false); !slices.Equal(got, []string{"a0", "a1"}) {
		t.Errorf("%v", got)
	}
	d, err := r.topics.Topic(t.Context(), topicOperator, "orders")
	if err != nil || d.GetPartitions()[0].GetEnd() != 4 {
		t.Errorf("%v, %v", d, err)
	}
}

// Dead letters of a group that takes no messages stay open.
func TestTopicDeadLetterOfNobody(t *testing.T) {
	r := newTopicFixture(t)
	r.topic("orders", "billing", nil)
	r.publish("orders", "", "")
	r.take("orders", "billing", 2, true)
	ids := r.deadLetters(2)
	if rep := r.redrive(Filter{IDs: ids[1:]}); rep.Done != 1 {
		t.Errorf("messages without a key have no order: %+v", rep)
	}
	w := r.manager.Watch()
	if err := w.count(t.Context()); err != nil || w.Stats().Topics != 1 {
		t.Errorf("%+v, %v", w.Stats(), err)
	}
	_, err := r.topics.Cancel(t.Context(), topicOperator, "orders", "billing")
	testkit.Must(t, err)
	if rep := r.redrive(Filter{Source: Topics}); rep.NoHandler != 1 || len(r.deadLetters(1)) != 1 {
		t.Errorf("%+v", rep)
	}
	testkit.Must(t, r.topics.Delete(t.Context(), topicOperator, "orders"))
	if err := w.count(t.Context()); err != nil || w.Stats().Topics != 0 {
		t.Errorf("%+v, %v", w.Stats(), err)
	}
}

// away are dead letters of topics whose servers do not answer.
type away struct{ TopicDeadLetters }

var errAway = errors.New("no server answers")

func (away) Scan(
	context.Context, topic.DeadLetterSelection, topic.DeadLetterPosition, func(topic.DeadLetter) error,
) error {
	return errAway
}
func (away) There(context.Context, []topic.DeadLetter) ([]bool, error) { return nil, errAway }

// Servers that do not answer hold up only what is asked of them: dead letters of events are
// listed and counted, and those of topics that are known count on.
func TestTopicsAway(t *testing.T) {
	r := newTopicFixture(t)
	r.topic("t", "g", nil)
	r.publish("t", "k")
	r.take("t", "g", 1, true)
	r.deadLetters(1)
	w := r.manager.Watch()
	testkit.Must(t, w.count(t.Context()))
	testkit.Equal(t, "letters", fmt.Sprint(w.Stats().DeadLetters, w.Stats().Topics), "0 1")
	r.add("fanout", "k", 1)
	there := r.manager.cfg.Topics
	r.manager.cfg.Topics, r.manager.sources[1] = away{there}, &topicDeadLetters{away{there}}
	if err := w.count(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("counted with %v", err)
	}
	testkit.Equal(t, "letters while servers are away", fmt.Sprint(w.Stats().DeadLetters, w.Stats().Topics), "1 1")
	testkit.Equal(t, "of events", len(r.list(Filter{Source: Events})), 1)
	if _, err := r.manager.List(t.Context(), Filter{}, 10, Position{}); !errors.Is(err, errAway) {
		t.Errorf("listed with %v", err)
	}
}
