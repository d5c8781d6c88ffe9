package topic_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/testkit"
)

func newPublisher(t *testing.T, f *fake, cfg topic.PublisherConfig) *topic.Publisher {
	t.Helper()
	p, err := f.dial(t, false).Publisher("t", cfg)
	testkit.Must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = p.Close(ctx)
	})
	return p
}

func numbered(n int) (list []*topic.Message) {
	for i := range n {
		list = append(list, &topic.Message{Payload: fmt.Append(nil, i)})
	}
	return list
}

// Whatever happens to requests and answers, each message is stored once and in order, and
// its result says where.
func TestPublishIsStoredOnce(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	random := rand.New(rand.NewPCG(1, 1))
	f.before = func(call string) error {
		if call == "Publish" && random.IntN(3) == 0 {
			return connect.NewError(connect.CodeUnavailable, errors.New("busy"))
		}
		return nil
	}
	f.lost = func(procedure string) bool { return strings.HasSuffix(procedure, "/Publish") && random.IntN(3) == 0 }
	var log bytes.Buffer // written by one goroutine, which ends with Close
	p := newPublisher(t, f, topic.PublisherConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})
	replayed := false
	for i := range 10 {
		results, err := p.Publish(t.Context(), &topic.Message{Payload: fmt.Append(nil, i)})
		testkit.Must(t, err)
		testkit.Equal(t, "position", results[0].GetPosition(), int64(i))
		replayed = replayed || results[0].GetReplayed()
	}
	stored := get(f, func() []*topic.Message { return f.messages })
	testkit.Equal(t, "stored", len(stored), 10)
	for i, m := range stored {
		testkit.Equal(t, "message", string(m.GetPayload()), fmt.Sprint(i))
	}
	if !replayed {
		t.Error("no request was repeated after it was stored")
	}
	testkit.Must(t, p.Close(t.Context()))
	if !strings.Contains(log.String(), "not published yet") || !strings.Contains(log.String(), "busy") {
		t.Errorf("the log: %s", &log)
	}
}

// Messages that come while a request is under way go together.
func TestPublishIsBatched(t *testing.T) {
	f := newFake(t, false)
	p := newPublisher(t, f, topic.PublisherConfig{})
	results, err := p.Publish(t.Context(), numbered(2500)...)
	testkit.Must(t, err)
	for i, r := range results {
		testkit.Equal(t, "position", r.GetPosition(), int64(i))
	}
	if n := get(f, func() int { return f.requests }); n > 100 {
		t.Errorf("2,500 messages took %d requests", n)
	}
}

// The buffer is bounded: who publishes waits, and stops waiting when told to. Close gives up
// at the end of its context.
func TestPublishWaitsForRoom(t *testing.T) {
	f := newFake(t, false)
	f.before = func(string) error { return connect.NewError(connect.CodeUnavailable, errors.New("away")) }
	p := newPublisher(t, f, topic.PublisherConfig{BufferMessages: 2})
	var mu sync.Mutex
	var outcomes []error
	done := func(_ *topic.Result, err error) {
		mu.Lock()
		defer mu.Unlock()
		outcomes = append(outcomes, err)
	}
	for range 2 {
		testkit.Must(t, p.Enqueue(t.Context(), &topic.Message{}, done))
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() { waiting <- p.Enqueue(ctx, &topic.Message{}, done) }()
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Error("no room:", err)
	}
	if err := p.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Error("closed while the server is away:", err)
	}
	mu.Lock()
	defer mu.Unlock()
	testkit.Equal(t, "outcomes", len(outcomes), 2)
	for _, err := range outcomes {
		if !errors.Is(err, topic.ErrClosed) {
			t.Error(err)
		}
	}
	if err := p.Enqueue(t.Context(), &topic.Message{}, done); !errors.Is(err, topic.ErrClosed) {
		t.Error("a closed publisher takes messages:", err)
	}
}

// What the server refuses is an error with its reason at once; the publisher continues.
func TestPublishIsRefused(t *testing.T) {
	f := newFake(t, false)
	f.before = func(string) error { return refuse(connect.CodeFailedPrecondition, "NO_SUBSCRIPTIONS") }
	p := newPublisher(t, f, topic.PublisherConfig{})
	_, err := p.Publish(t.Context(), numbered(3)...)
	testkit.Equal(t, "reason", topic.Reason(err), "NO_SUBSCRIPTIONS")
	f.do(func() { f.before = func(string) error { return nil } })
	_, err = p.Publish(t.Context(), numbered(1)...)
	testkit.Must(t, err)
	_, err = p.Publish(t.Context(), &topic.Message{}, &topic.Message{Payload: make([]byte, 1<<20+1)})
	if err == nil || !strings.Contains(err.Error(), "payload") {
		t.Error("a message of more than 1 MiB:", err)
	}
	testkit.Equal(t, "stored", get(f, func() int { return len(f.messages) }), 1)
}

// A publisher that continues another one's numbers repeats its requests.
func TestPublishContinues(t *testing.T) {
	f := newFake(t, false)
	first := newPublisher(t, f, topic.PublisherConfig{Producer: "p"})
	_, err := first.Publish(t.Context(), numbered(2)...)
	testkit.Must(t, err)
	testkit.Must(t, first.Close(t.Context()))
	last := get(f, func() int64 { return int64(len(f.numbers)) })
	second := newPublisher(t, f, topic.PublisherConfig{Producer: "p", Number: last})
	results, err := second.Publish(t.Context(), numbered(1)...)
	testkit.Must(t, err)
	if !results[0].GetReplayed() {
		t.Error("the request was stored again")
	}
	if _, err := f.dial(t, false).Publisher("t", topic.PublisherConfig{Number: 5}); err == nil {
		t.Error("a number of nobody's")
	}
}

// An access token that is refused is replaced; if the next one is too, that is the error.
func TestPublishRenewsItsToken(t *testing.T) {
	f := newFake(t, false)
	f.tokens["Bearer first"] = true
	p := newPublisher(t, f, topic.PublisherConfig{})
	_, err := p.Publish(t.Context(), numbered(1)...)
	testkit.Must(t, err)
	f.do(func() { f.tokens["Bearer second"] = true })
	_, err = p.Publish(t.Context(), numbered(1)...)
	testkit.Equal(t, "code", connect.CodeOf(err), connect.CodeUnauthenticated)
}
