package searchrelay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/workers/consume"
)

// integrator is a consumer of search events as it should be: an effect and the dedup_key that it
// is of are kept together, so that an event counts once; what fails is tried again at growing
// intervals, and after five attempts it is in the dead letters of its topic.
type integrator struct {
	t   *testing.T
	out *kafka.Client

	mu      sync.Mutex
	effects map[string]int // by dedup_key; what a database would have
	handled int            // records, repeated ones too
	pauses  map[string][]time.Duration
	stop    func() // ends the process after some effects
	left    int
}

const attempts = 5

// handle takes a record. An error ends the process before it has committed.
func (c *integrator) handle(ctx context.Context, r *kafka.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left <= 0 { // The process has ended: its other partitions have no effects either.
		return context.Canceled
	}
	c.handled++
	var e search.Envelope
	if err := json.Unmarshal(r.Value, &e); err != nil {
		return c.deadLetter(ctx, r, &e, 1, err)
	}
	if c.effects[e.DedupKey] > 0 {
		return nil
	}
	for n := 1; ; n++ {
		failure := c.apply(&e)
		if failure == nil {
			break
		}
		if n == attempts {
			if err := c.deadLetter(ctx, r, &e, n, failure); err != nil {
				return err
			}
			break
		}
		// Half of it is chance, so that consumers that failed together do not come together.
		pause := 100 * time.Millisecond << n
		c.pauses[e.EventID] = append(c.pauses[e.EventID], pause/2+rand.N(pause/2))
	}
	c.effects[e.DedupKey]++
	if c.left--; c.left == 0 {
		c.stop()
		return ctx.Err()
	}
	return nil
}

func (c *integrator) apply(e *search.Envelope) error {
	var payload struct {
		ResultID string `json:"result_id"`
	}
	if err := json.Unmarshal(e.Payload, &payload); err != nil {
		return err
	}
	if payload.ResultID == "bad" {
		return errors.New("there is no such result")
	}
	return nil
}

// deadLetter writes the dead letter of a record.
func (c *integrator) deadLetter(ctx context.Context, r *kafka.Record, e *search.Envelope, n int, why error) error {
	value, err := search.DeadLetter{OriginalTopic: r.Topic, OriginalPartition: r.Partition, OriginalKey: string(r.Key),
		EventID: e.EventID, EventType: e.EventType, Error: why.Error(), Attempts: n, Event: r.Value}.JSON(time.Now())
	if err != nil {
		return err
	}
	return kafka.Publish(ctx, c.out, &kafka.Record{Topic: search.Target{Topic: r.Topic}.DeadLetters(), Key: r.Key,
		Value: value})
}

// life runs the consumer until it has had some more effects.
func (c *integrator) life(b *kafkatest.Broker, group string, effects int) {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	c.stop, c.left = cancel, effects
	e, err := consume.New(consume.Config{
		Addr: b.Addr, Group: group, Consumer: "c", Topics: kafka.SearchTopics, Store: storetest.NewMemory(time.Now),
		Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Handle: c.handle,
		WriteDeadLetter: func(_ context.Context, d consume.DeadLetter) error {
			return fmt.Errorf("the consumer writes its own: %s", d.Reason)
		},
	})
	testkit.Must(c.t, err)
	if err := e.Run(ctx, func() {}); err != nil || !errors.Is(ctx.Err(), context.Canceled) {
		c.t.Fatalf("the consumer ended with %v, expected to be stopped", err)
	}
}

// KS16, KS17: all topics are published twice, as by a replay, and the consumer ends several
// times before it has committed. Each event has its effect once; one that fails is tried five
// times, at growing intervals, and then it is in its topic's dead letters, with its origin and
// the reason, and the others continue.
func TestReferenceConsumer(t *testing.T) {
	t.Parallel()
	b := kafkatest.InProcess(t)
	f := newFixture(t, "")
	const users = 8
	for n := range users {
		f.record(fmt.Sprint("user", n), six()...)
	}
	bad := f.record("alice", &searchv1.SearchClick{SearchId: "s1", ResultId: "bad"})[0]
	testkit.Must(t, f.cycles(f.relay()))
	testkit.Equal(t, "records", len(f.log), 6*users+1)
	client := testkit.Value(kafka.NewTransactional(b.Addr, "relay"))(t)
	defer client.Close()
	for range 2 {
		var list []*kafka.Record
		for _, r := range f.log {
			list = append(list, &kafka.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value,
				Headers: r.Headers})
		}
		testkit.Must(t, kafka.Transact(t.Context(), client, list))
	}
	out := testkit.Value(kafka.NewProducer(b.Addr))(t)
	defer out.Close()
	c := &integrator{t: t, out: out, effects: map[string]int{}, pauses: map[string][]time.Duration{}}
	for range 3 {
		c.life(b, "integrator", 8)
	}
	c.life(b, "integrator", len(f.log)-len(c.effects)) // some may have been under way at a stop
	testkit.Equal(t, "events", len(c.effects), len(f.log))
	for _, r := range f.log {
		if e := envelope(t, r); c.effects[e.DedupKey] != 1 {
			t.Errorf("%s: %d effects", e.EventID, c.effects[e.DedupKey])
		}
	}
	pauses := c.pauses[bad]
	testkit.Equal(t, "pauses", len(pauses), attempts-1)
	for i := 1; i < len(pauses); i++ {
		if pauses[i] <= pauses[i-1] {
			t.Errorf("pauses of %v do not grow", pauses)
		}
	}
	var deadLetters []search.DeadLetter
	for _, topic := range kafka.SearchTopics {
		spans := testkit.Value(lag.Spans(t.Context(), b.Addr, topic+".dlq"))(t)
		testkit.Must(t, lag.Read(t.Context(), b.Addr, spans, func(r *kafka.Record) error {
			var d search.DeadLetter
			deadLetters = append(deadLetters, d)
			return json.Unmarshal(r.Value, &deadLetters[len(deadLetters)-1])
		}))
	}
	if len(deadLetters) != 1 || deadLetters[0].EventID != bad || deadLetters[0].OriginalTopic != "search_click_v1" ||
		deadLetters[0].Attempts != 5 || deadLetters[0].Error != "there is no such result" {
		t.Errorf("%+v, expected the letter of %s", deadLetters, bad)
	}
}
