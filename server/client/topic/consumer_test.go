package topic_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// runs is a consumer that runs.
type runs struct {
	stop context.CancelFunc
	done chan error
}

// consume runs a consumer until the test ends.
func (f *fake) consume(t *testing.T, old bool, cfg topic.ConsumerConfig) *runs {
	t.Helper()
	c, err := f.dial(t, old).Consumer("t", "g", cfg)
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	r := &runs{stop: stop, done: make(chan error, 1)}
	go func() { r.done <- c.Run(ctx) }()
	t.Cleanup(stop)
	return r
}

// end stops the consumer and returns what Run did.
func (r *runs) end() error {
	r.stop()
	return <-r.done
}

// seen counts what handlers were called for.
type seen struct {
	mu    sync.Mutex
	count map[int64]int
	order []int64
}

func (s *seen) add(p int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == nil {
		s.count = map[int64]int{}
	}
	s.count[p]++
	s.order = append(s.order, p)
}

func (s *seen) handler(context.Context, *topic.Received) error { return nil }

// bothWays runs a test over a stream in both directions, and over HTTP/1.1 with calls.
func bothWays(t *testing.T, test func(t *testing.T, old bool)) {
	t.Helper()
	t.Run("HTTP/2", func(t *testing.T) { test(t, false) })
	t.Run("HTTP/1.1", func(t *testing.T) { test(t, true) })
}

// Messages are handled and acknowledged, in groups; at the end the consumer detaches.
func TestConsume(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, old bool) {
		f := newFake(t, old)
		f.store(numbered(1000)...)
		var s seen
		r := f.consume(t, old, topic.ConsumerConfig{Concurrency: 4, MaxMessages: 300,
			Handler: func(_ context.Context, m *topic.Received) error {
				if string(m.GetPayload()) != fmt.Sprint(m.Position) || m.ID != fmt.Sprintf("0-%d", m.Position) ||
					m.Topic != "t" || m.Group != "g" || m.Attempt != 1 {
					t.Errorf("%+v", m)
				}
				s.add(m.Position)
				return nil
			}})
		testkit.Eventually(t, "all are acknowledged", func() bool { return f.ackedCount() == 1000 })
		testkit.Must(t, r.end())
		testkit.Equal(t, "handled", len(s.order), 1000)
		detached := get(f, func() []*topicv1.DetachRequest { return f.detached })
		if len(detached) != 1 || detached[0].GetCancel() {
			t.Errorf("detached: %v", detached)
		}
		calls := get(f, func() []string { return f.calls })
		if used := slices.Contains(calls, "Ack"); used != old || slices.Contains(calls, "Consume") != old {
			t.Errorf("calls: %q", slices.Compact(calls))
		}
		if len(calls) > 500 {
			t.Errorf("%d calls for 1,000 messages", len(calls))
		}
	})
}

// Kill the connection at random moments, again and again: everything is handled and
// acknowledged, and by a consumer that is alone nothing is handled twice.
func TestConnectionIsKilled(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, old bool) {
		f := newFake(t, old)
		f.store(numbered(400)...)
		var s seen
		handler := func(ctx context.Context, m *topic.Received) error {
			s.add(m.Position)
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				t.Error("a handler was ended:", context.Cause(ctx))
			}
			return nil
		}
		r := f.consume(t, old, topic.ConsumerConfig{Concurrency: 3, Handler: handler})
		random := rand.New(rand.NewPCG(1, 1))
		for acked := 0; acked < 400; {
			made, more := get(f, func() int { return f.made }), acked+1+random.IntN(80)
			early := random.IntN(3) == 0 // as soon as there is another session
			testkit.Eventually(t, "it continues", func() bool {
				acked = f.ackedCount()
				return acked >= min(more, 400) || early && get(f, func() int { return f.made }) > made
			})
			if acked < 400 {
				f.web.CloseClientConnections()
			}
		}
		// The answer to the last acknowledgement may have been lost.
		if err := r.end(); err != nil && !strings.Contains(err.Error(), "could not be acknowledged") {
			t.Error(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for p := range int64(400) {
			if s.count[p] != 1 {
				t.Errorf("position %d was handled %d times", p, s.count[p])
			}
		}
		if n := get(f, func() int { return f.made }); n < 3 {
			t.Errorf("%d sessions: nothing was killed", n)
		}
	})
}

// Messages of a key are handled in order and one at a time, whatever runs beside them.
func TestKeysStayInOrder(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	for i := range 300 {
		f.store(&topic.Message{Key: string(rune('a' + i%7)), Payload: fmt.Append(nil, i)})
	}
	var mu sync.Mutex
	last, busy, together := map[string]int64{}, map[string]bool{}, 0
	r := f.consume(t, false, topic.ConsumerConfig{Concurrency: 8, MaxMessages: 200, BatchSize: 5,
		BatchHandler: func(_ context.Context, batch []*topic.Received) error {
			mu.Lock()
			keys := map[string]bool{}
			for _, m := range batch {
				if busy[m.GetKey()] || m.Position < last[m.GetKey()] {
					t.Errorf("position %d of %s after %d, or beside it", m.Position, m.GetKey(), last[m.GetKey()])
				}
				last[m.GetKey()], keys[m.GetKey()] = m.Position, true
			}
			for k := range keys {
				busy[k] = true
			}
			together = max(together, len(busy))
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			for k := range keys {
				delete(busy, k)
			}
			return nil
		}})
	testkit.Eventually(t, "all are acknowledged", func() bool { return f.ackedCount() == 300 })
	testkit.Must(t, r.end())
	if together < 2 {
		t.Error("nothing ran at once")
	}
}

// A failed message is returned with its reason and pause, and comes again; of a batch those
// that failed.
func TestFailures(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, old bool) {
		f := newFake(t, old)
		f.store(numbered(3)...)
		r := f.consume(t, old, topic.ConsumerConfig{BatchHandler: func(_ context.Context, batch []*topic.Received) error {
			failed := topic.Failures{}
			for i, m := range batch {
				if m.Position == 1 && m.Attempt < 3 {
					failed[i] = topic.After(time.Minute, fmt.Errorf("attempt %d", m.Attempt))
				}
			}
			if len(failed) == 0 {
				return nil
			}
			return fmt.Errorf("some: %w", failed)
		}})
		testkit.Eventually(t, "all are acknowledged", func() bool { return f.ackedCount() == 3 })
		testkit.Must(t, r.end())
		nacks := get(f, func() []*topicv1.NackSet { return f.nacks })
		testkit.Equal(t, "returned", len(nacks), 2)
		for i, n := range nacks {
			testkit.Equal(t, "reason", n.GetReason(), fmt.Sprintf("attempt %d", i+1))
			testkit.Equal(t, "pause", n.GetDelay().AsDuration(), time.Minute)
			testkit.Equal(t, "position", n.GetPositions()[0].GetBase(), 1)
		}
	})
}

// HQ-C18: the group is registered before anything is received.
func TestRegistersFirst(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	tries := 0
	f.before = func(call string) error {
		if tries++; call == "CreateSubscription" && tries < 3 {
			return connect.NewError(connect.CodeUnavailable, errors.New("busy"))
		}
		return nil
	}
	f.store(numbered(1)...)
	r := f.consume(t, false, topic.ConsumerConfig{Subscribe: &topicv1.SubscriptionConfig{},
		Handler: func(context.Context, *topic.Received) error { return nil }})
	testkit.Eventually(t, "it is acknowledged", func() bool { return f.ackedCount() == 1 })
	testkit.Must(t, r.end())
	calls := get(f, func() []string { return f.calls })
	want := []string{"CreateSubscription", "CreateSubscription", "CreateSubscription", "ConsumeBidi", "Detach"}
	if !slices.Equal(calls, want) {
		t.Errorf("calls: %q", calls)
	}
}

// HQ-C22: stopping ends the subscription at once, if that was asked for. It first
// lets handlers finish; what did not begin goes back.
func TestStop(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, old bool) {
		f := newFake(t, old)
		f.store(numbered(3)...)
		began, finish := make(chan struct{}, 3), make(chan struct{})
		r := f.consume(t, old, topic.ConsumerConfig{CancelOnStop: true,
			Handler: func(ctx context.Context, _ *topic.Received) error {
				began <- struct{}{}
				<-finish
				return ctx.Err()
			}})
		<-began
		r.stop()
		select {
		case err := <-r.done:
			t.Error("Run left a handler behind:", err)
		case <-time.After(20 * time.Millisecond):
		}
		close(finish)
		testkit.Must(t, <-r.done)
		testkit.Equal(t, "acknowledged", f.ackedCount(), 1)
		detached := get(f, func() []*topicv1.DetachRequest { return f.detached })
		if len(detached) != 1 || !detached[0].GetCancel() {
			t.Errorf("detached: %v", detached)
		}
		testkit.Equal(t, "messages that somebody has", get(f, func() int { return len(f.owner) }), 0)
	})
}

// A stop that takes too long ends the contexts of handlers.
func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	f.store(numbered(1)...)
	began := make(chan struct{})
	r := f.consume(t, false, topic.ConsumerConfig{DrainTimeout: time.Millisecond,
		Handler: func(ctx context.Context, _ *topic.Received) error {
			close(began)
			<-ctx.Done()
			return ctx.Err()
		}})
	<-began
	testkit.Must(t, r.end())
	testkit.Equal(t, "acknowledged", f.ackedCount(), 0)
	testkit.Equal(t, "returned", get(f, func() int { return len(f.nacks) }), 1)
}

// Leases are prolonged as long as handlers work.
func TestExtends(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, old bool) {
		f := newFake(t, old)
		f.config = &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{Lease: durationOf(30 * time.Millisecond)}}
		f.store(numbered(1)...)
		finish := make(chan struct{})
		r := f.consume(t, old, topic.ConsumerConfig{
			Handler: func(context.Context, *topic.Received) error { <-finish; return nil }})
		testkit.Eventually(t, "it is prolonged", func() bool { return get(f, func() int { return f.extensions }) > 3 })
		close(finish)
		testkit.Eventually(t, "it is acknowledged", func() bool { return f.ackedCount() == 1 })
		testkit.Must(t, r.end())
	})
}

// What the server says for good ends Run with its reason; a repetition would not help.
func TestEndsForGood(t *testing.T) {
	t.Parallel()
	for reason, tt := range map[string]struct {
		code connect.Code
		gone bool
	}{
		"SUBSCRIPTION_GONE":      {connect.CodeFailedPrecondition, true},
		"SUBSCRIPTION_NOT_FOUND": {connect.CodeNotFound, true},
		"TOPIC_DELETED":          {connect.CodeNotFound, true},
		"TOPIC_FORBIDDEN":        {connect.CodePermissionDenied, false},
		"REPLACED":               {connect.CodeAborted, false},
		"MEMBER_EXISTS":          {connect.CodeAlreadyExists, false},
	} {
		t.Run(reason, func(t *testing.T) {
			f := newFake(t, false)
			f.before = func(string) error { return refuse(tt.code, reason) }
			err := <-f.consume(t, false, topic.ConsumerConfig{Handler: new(seen).handler}).done
			if topic.Reason(err) != reason || errors.Is(err, topic.ErrSubscriptionGone) != tt.gone {
				t.Error(err)
			}
		})
	}
}

// HQ-H01: a consumer needs one handler. It runs once at a time.
func TestConsumerIsChecked(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	c := f.dial(t, false)
	var s seen
	both := topic.ConsumerConfig{Handler: s.handler,
		BatchHandler: func(context.Context, []*topic.Received) error { return nil }}
	for _, cfg := range []topic.ConsumerConfig{{}, both} {
		_, err := c.Consumer("t", "g", cfg)
		if !errors.Is(err, topic.ErrNoHandler) || !strings.Contains(err.Error(), "zero members") {
			t.Error(err)
		}
	}
	testkit.Equal(t, "calls for them", get(f, func() int { return len(f.calls) }), 0)
	if _, err := c.Consumer("t", "", topic.ConsumerConfig{Handler: s.handler}); err == nil {
		t.Error("a consumer without a group")
	}
	one, err := c.Consumer("t", "g", topic.ConsumerConfig{Handler: s.handler})
	testkit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- one.Run(ctx) }()
	testkit.Eventually(t, "it is attached", func() bool { return get(f, func() int { return f.made }) == 1 })
	if err := one.Run(ctx); err == nil {
		t.Error("it runs twice")
	}
	cancel()
	testkit.Must(t, <-done)
	var attached atomic.Bool
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	go func() { done <- one.Run(ctx) }()
	testkit.Eventually(t, "it is attached again", func() bool {
		attached.Store(get(f, func() int { return f.made }) == 2)
		return attached.Load()
	})
	cancel()
	testkit.Must(t, <-done)
}

// A token that is refused is replaced.
func TestConsumerRenewsItsToken(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	f.tokens["Bearer first"] = true
	f.store(numbered(1)...)
	var s seen
	r := f.consume(t, false, topic.ConsumerConfig{Handler: s.handler})
	testkit.Eventually(t, "it is acknowledged", func() bool { return f.ackedCount() == 1 })
	testkit.Must(t, r.end())
}
