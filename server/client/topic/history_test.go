package topic_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/history"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// compare refuses a caller who was shown what is not in the history. The lock is held.
func (f *fake) compare(said string) error {
	shown, ok := history.Parse(said)
	if !ok || f.generation == "" || shown.Generation == f.generation && shown.Commit <= f.commit {
		return nil
	}
	if last, ok := f.ancestors[shown.Generation]; ok && shown.Commit <= last {
		return nil
	}
	return refuse(connect.CodeAborted, "HISTORY_CHANGED")
}

func (f *fake) says() string {
	return history.Commit{Generation: f.generation, Commit: f.commit}.String()
}

func (f *fake) shown() int64 { return get(f, func() int64 { return f.commit }) }

// restart ends all connections. The server that comes back has the history up to a commit, and messages.
func (f *fake) restart(last int64, messages ...*topic.Message) {
	f.do(func() {
		f.ancestors = map[string]int64{f.generation: last}
		f.generation, f.commit, f.messages = f.generation+"+", last+1, messages
		clear(f.acked)
		clear(f.owner)
		clear(f.sessions)
		clear(f.numbers)
	})
	f.web.CloseClientConnections()
}

// A server that was put back to an earlier copy has another message at a position whose handler runs: it
// is handled, after the handler has ended and OnRestore was called, also if the server refused another
// call than the consumer's.
func TestRestore(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"the stream is refused", "a publish is refused",
		"a publish is refused while the stream is opened"} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, old bool) {
				f := newFake(t, old)
				f.generation, f.commit = "g", 10
				f.store(text("old"))
				opens := &opening{}
				client := f.dial(t, old, connect.WithInterceptors(opens))
				refused := func() {
					testkit.Eventually(t, "a publish is refused", func() bool { // not only its connection
						_, err := client.Topics().Publish(t.Context(), &topicv1.PublishRequest{Topic: "t"})
						return topic.Reason(err) == "HISTORY_CHANGED"
					})
					testkit.Equal(t, "what the client was shown", client.History(), "")
				}
				var running, restored, restarts atomic.Int32
				begun, handled := make(chan bool, 1), make(chan string, 10)
				consumer, err := client.Consumer("t", "g", topic.ConsumerConfig{
					Handler: func(ctx context.Context, m *topic.Received) error {
						running.Add(1)
						defer running.Add(-1)
						if string(m.GetPayload()) == "old" {
							begun <- true
							<-ctx.Done()
							if !errors.Is(context.Cause(ctx), topic.ErrRestored) {
								t.Error("the handler was ended:", context.Cause(ctx))
							}
							return nil
						}
						handled <- fmt.Sprint(string(m.GetPayload()), " ", restored.Load())
						return nil
					},
					OnRestore: func(context.Context) error {
						if n := running.Load(); n != 0 {
							t.Error(n, "handlers run")
						}
						if restarts.Add(1) == 1 {
							return errors.New("once more")
						}
						restored.Add(1)
						return nil
					}})
				testkit.Must(t, err)
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- consumer.Run(ctx) }()
				<-begun
				switch name {
				case "the stream is refused":
					f.restart(5, text("new"))
				case "a publish is refused": // the consumer comes later, and says nothing
					var published atomic.Bool
					f.do(func() {
						f.before = func(call string) error {
							if strings.HasPrefix(call, "Consume") && !published.Load() {
								return connect.NewError(connect.CodeUnavailable, errors.New("not yet"))
							}
							return nil
						}
					})
					f.restart(5, text("new"))
					refused()
					published.Store(true)
				default:
					opens.meanwhile.Store(&refused)
					f.restart(5, text("new"))
				}
				testkit.Equal(t, "handled", <-handled, "new 1")
				testkit.Eventually(t, "it is acknowledged", func() bool { return f.ackedCount() == 1 })
				stop()
				testkit.Must(t, <-done)
				testkit.Equal(t, "what the client was shown", client.History(), "g+-6")
			})
		})
	}
}

// opening is an interceptor that does something while a stream is opened, before the client says what it
// was shown.
type opening struct{ meanwhile atomic.Pointer[func()] }

func (*opening) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }

func (o *opening) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		if do := o.meanwhile.Swap(nil); do != nil {
			(*do)()
		}
		return next(ctx, spec)
	}
}

func (*opening) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func text(s string) *topic.Message { return &topic.Message{Payload: []byte(s)} }

// A start that loses nothing ends no handler, and nothing is handled twice.
func TestStartWithoutLoss(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, old bool) {
		f := newFake(t, old)
		f.generation, f.commit = "g", 10
		f.store(text("a"))
		begun, proceed := make(chan bool, 10), make(chan bool)
		r := f.consume(t, old, topic.ConsumerConfig{
			Handler: func(ctx context.Context, _ *topic.Received) error {
				begun <- true
				<-proceed
				return context.Cause(ctx)
			},
			OnRestore: func(context.Context) error { t.Error("OnRestore was called"); return nil }})
		<-begun
		f.restart(10, text("a"))
		testkit.Eventually(t, "it is attached again", func() bool {
			return get(f, func() bool { return len(f.attached) == 2 && len(f.owner) == 1 })
		})
		close(proceed)
		testkit.Eventually(t, "it is acknowledged", func() bool { return f.ackedCount() == 1 })
		testkit.Must(t, r.end())
		testkit.Equal(t, "handled again", len(begun), 0)
	})
}

// What a stream of a server brings that was started again since may not be there any more: it is not
// handled, and another stream is opened.
func TestStreamOfAnEarlierGeneration(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, old bool) {
		f := newFake(t, old)
		f.generation, f.commit = "g", 10
		client := f.dial(t, old)
		var handled atomic.Int32
		consumer, err := client.Consumer("t", "g", topic.ConsumerConfig{
			Handler: func(context.Context, *topic.Received) error { handled.Add(1); return nil }})
		testkit.Must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- consumer.Run(ctx) }()
		testkit.Eventually(t, "it is attached", func() bool { return client.History() == "g-10" })
		f.do(func() { f.ancestors, f.generation, f.commit = map[string]int64{"g": 10}, "h", 12 })
		_, err = client.Subscriptions().Heartbeat(t.Context(), &topicv1.HeartbeatRequest{Topic: "t", Group: "g"})
		testkit.Must(t, err)
		f.store(text("a"))
		testkit.Eventually(t, "it is attached again", func() bool {
			return get(f, func() bool { return len(f.attached) == 2 })
		})
		testkit.Eventually(t, "it is acknowledged", func() bool { return f.ackedCount() == 1 })
		stop()
		testkit.Must(t, <-done)
		testkit.Equal(t, "handled", handled.Load(), 1)
		testkit.Equal(t, "what the client was shown", client.History(), "h-12")
	})
}

// An answer of another generation that was asked for before the client was shown more is not used.
func TestAnswerOfLessThanWasShown(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	f.generation, f.commit = "g", 10
	client := f.dial(t, false)
	publish := func() error {
		_, err := client.Topics().Publish(t.Context(),
			&topicv1.PublishRequest{Topic: "t", Messages: []*topic.Message{text("a")}})
		return err
	}
	testkit.Must(t, publish())
	f.do(func() {
		f.lost = func(string) bool { // while the first is answered, the second is
			f.lost = func(string) bool { return false }
			f.mu.Unlock()
			f.do(func() { f.commit = 11 })
			testkit.Must(t, publish())
			f.do(func() { f.ancestors, f.generation, f.commit = map[string]int64{"g": 10}, "h", 11 })
			f.mu.Lock()
			return false
		}
	})
	testkit.Equal(t, "code", connect.CodeOf(publish()), connect.CodeUnavailable)
	testkit.Equal(t, "what the client was shown", client.History(), "g-11")
	testkit.Equal(t, "reason", topic.Reason(publish()), "HISTORY_CHANGED")
	testkit.Must(t, publish())
	testkit.Equal(t, "what the client was shown", client.History(), "h-11")
}

// A publisher says that the server was put back before it sends another message, and sends it once.
// What a program was shown in an earlier run counts.
func TestPublishAfterARestore(t *testing.T) {
	t.Parallel()
	f := newFake(t, false)
	f.generation, f.commit, f.ancestors = "h", 6, map[string]int64{"g": 5}
	cfg := topic.Config{BaseURL: f.web.URL, History: "g-9",
		Token: func(context.Context, bool) (string, error) { return "first", nil }}
	client, err := topic.Dial(cfg)
	testkit.Must(t, err)
	stored := -1
	p, err := client.Publisher("t", topic.PublisherConfig{OnRestore: func() {
		stored = get(f, func() int { return len(f.messages) })
	}})
	testkit.Must(t, err)
	_, err = p.Publish(t.Context(), text("a"))
	testkit.Must(t, err)
	testkit.Must(t, p.Close(t.Context()))
	testkit.Equal(t, "messages when it was told", stored, 0)
	testkit.Equal(t, "messages", get(f, func() int { return len(f.messages) }), 1)
	testkit.Equal(t, "what the client was shown", client.History(), "h-6")

	cfg.History = "g"
	if _, err := topic.Dial(cfg); err == nil {
		t.Error("something that is no history is taken")
	}
}
