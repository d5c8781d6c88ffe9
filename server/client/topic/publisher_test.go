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
	"github.com/parley-chat/parley/server/infra/testkit"
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
	t.Parallel()
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

// The buffer is bounded: a publisher waits until its context ends. Close gives up
// at the end of its context.
func TestPublishWaitsForRoom(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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

// A message that the topic's schema refuses is refused alone: what went with it in a request is stored,
// once and in order, also if answers are lost.
func TestPublishOfAMismatch(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	bad := func(i int) bool { return i%97 == 5 || i > 900 && i < 910 }
	f.mismatch = func(m *topic.Message) bool { return strings.HasPrefix(string(m.GetPayload()), "bad") }
	random := rand.New(rand.NewPCG(2, 2))
	f.lost = func(procedure string) bool { return strings.HasSuffix(procedure, "/Publish") && random.IntN(10) == 0 }
	p := newPublisher(t, f, topic.PublisherConfig{})
	const n = 1500
	var done sync.WaitGroup
	done.Add(n)
	for i := range n {
		m := &topic.Message{Payload: fmt.Append(nil, i)}
		if bad(i) {
			m.Payload = append([]byte("bad "), m.Payload...)
		}
		testkit.Must(t, p.Enqueue(t.Context(), m, func(_ *topic.Result, err error) {
			defer done.Done()
			if bad(i) && topic.Reason(err) != "SCHEMA_MISMATCH" || !bad(i) && err != nil {
				t.Errorf("message %d: %v", i, err)
			}
		}))
	}
	done.Wait()
	at := 0
	for i := range n {
		if bad(i) {
			continue
		}
		if got := get(f, func() string { return string(f.messages[at].GetPayload()) }); got != fmt.Sprint(i) {
			t.Fatalf("message %d of the topic is %s, want %d", at, got, i)
		}
		at++
	}
	testkit.Equal(t, "stored", get(f, func() int { return len(f.messages) }), at)
}

// Publishers with one name never share numbers: not after a restart, and not at the same time. Each
// message is stored once, and the answer says so.
func TestPublishersShareAName(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	var all []*topic.Publisher
	for range 3 { // the first two at the same time, the third behind a restart of the first
		all = append(all, newPublisher(t, f, topic.PublisherConfig{Producer: "billing-service"}))
		if len(all) == 3 {
			testkit.Must(t, all[0].Close(t.Context()))
			all[0], all = all[2], all[:2]
		}
		for i, p := range all {
			for n := range 3 {
				results, err := p.Publish(t.Context(), &topic.Message{Payload: fmt.Appendf(nil, "%d invoice %d", i, n)})
				testkit.Must(t, err)
				testkit.Equal(t, "replayed", results[0].GetReplayed(), false)
			}
		}
	}
	testkit.Equal(t, "stored", get(f, func() int { return len(f.messages) }), 3+6+6)
	names := get(f, func() (names map[string]bool) {
		names = map[string]bool{}
		for id := range f.numbers {
			names[id.producer] = true
			if !strings.HasPrefix(id.producer, "billing-service-") || len(id.producer) > 128 {
				t.Errorf("the name is %q", id.producer)
			}
		}
		return names
	})
	testkit.Equal(t, "names", len(names), 3)
	_, err := f.dial(t, false).Publisher("t", topic.PublisherConfig{Producer: strings.Repeat("x", 92)})
	if err == nil || !strings.Contains(err.Error(), "91") {
		t.Error("a name without room for the random part:", err)
	}
}

// producer is the name of the only publisher; the caller holds the lock.
func producer(f *fake) (name string) {
	for id := range f.numbers {
		name = id.producer
	}
	return name
}

// A number that is stored before the publisher has sent it is another process's: its messages are
// not taken for stored.
func TestReplayedAtTheFirstTry(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	p := newPublisher(t, f, topic.PublisherConfig{})
	_, err := p.Publish(t.Context(), numbered(1)...)
	testkit.Must(t, err)
	f.do(func() { // a copy of the process has sent the next number
		f.numbers[numberOf{producer(f), 2}] = 0
	})
	if _, err := p.Publish(t.Context(), numbered(1)...); !errors.Is(err, topic.ErrReplayed) {
		t.Errorf("the publish ends with %v", err)
	}
	results, err := p.Publish(t.Context(), numbered(1)...)
	testkit.Must(t, err)
	testkit.Equal(t, "position of the next", results[0].GetPosition(), 1)
}

// An access token that is refused is replaced; if the next one is too, that is the error.
func TestPublishRenewsItsToken(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	f.tokens["Bearer first"] = true
	p := newPublisher(t, f, topic.PublisherConfig{})
	_, err := p.Publish(t.Context(), numbered(1)...)
	testkit.Must(t, err)
	f.do(func() { f.tokens["Bearer second"] = true })
	_, err = p.Publish(t.Context(), numbered(1)...)
	testkit.Equal(t, "code", connect.CodeOf(err), connect.CodeUnauthenticated)
}
