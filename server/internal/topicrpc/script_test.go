package topicrpc

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/topic"
)

// script is a session whose events a test gives, and which notes what is done with it.
type script struct {
	events chan topic.Event
	ended  chan string
	ack    func(ctx context.Context, set *topicv1.AckSet) ([]*topicv1.Refusal, error)

	mu       sync.Mutex
	acks     []*topicv1.AckSet
	nacks    []*topicv1.NackSet
	extends  []*topicv1.ExtendSet
	credits  int64
	detached int
}

var _ session = (*script)(nil)

func newScript() *script {
	return &script{events: make(chan topic.Event, 1000), ended: make(chan string, 10)}
}

func (s *script) Attached() *topicv1.Attached { return &topicv1.Attached{Session: "1-x", Member: "m"} }

func (s *script) Stalls() []*topicv1.Stall { return nil }

func (s *script) Receive(ctx context.Context, _ int) (topic.Event, error) {
	select {
	case e := <-s.events:
		return e, nil
	case reason := <-s.ended:
		return topic.Event{Gone: reason}, nil
	case <-ctx.Done():
		return topic.Event{}, ctx.Err()
	}
}

func (s *script) Ack(ctx context.Context, set *topicv1.AckSet) ([]*topicv1.Refusal, error) {
	s.mu.Lock()
	s.acks = append(s.acks, set)
	s.mu.Unlock()
	if s.ack != nil {
		return s.ack(ctx, set)
	}
	return nil, nil
}

func (s *script) Nack(_ context.Context, set *topicv1.NackSet) ([]*topicv1.Refusal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nacks = append(s.nacks, set)
	return []*topicv1.Refusal{{Outcome: topicv1.Outcome_OUTCOME_LEASE_LOST}}, nil
}

func (s *script) Extend(_ context.Context, set *topicv1.ExtendSet) ([]*topicv1.Refusal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extends = append(s.extends, set)
	return nil, nil
}

func (s *script) AddCredits(c *topicv1.Credits) *topicv1.Credits {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.credits += c.GetMessages()
	return c
}

func (s *script) Detach(context.Context, bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detached++
	return nil
}

func (s *script) End(reason string) { s.ended <- reason }

// acked is the number of calls of Ack, and of positions in them.
func (s *script) acked() (calls, positions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.acks {
		positions += len(a.GetPositions())
	}
	return len(s.acks), positions
}

// scripted serves the two streams of a script.
type scripted struct {
	topicv1connect.UnimplementedConsumerServiceHandler
	s *script
}

func (h scripted) Consume(
	ctx context.Context, _ *topicv1.ConsumeRequest, stream *connect.ServerStream[topicv1.ConsumeResponse],
) error {
	out := newSender(ctx, h.s, stream.Conn(), store.Line("gen"))
	defer out.close()
	return out.run(ctx)
}

func (h scripted) ConsumeBidi(
	ctx context.Context, stream *connect.BidiStream[topicv1.ConsumeBidiRequest, topicv1.ConsumeBidiResponse],
) error {
	if _, err := stream.Receive(); err != nil {
		return err
	}
	out := newSender(ctx, h.s, stream.Conn(), store.Line("gen"))
	defer out.close()
	return converse(ctx, h.s, out, stream.Receive)
}

// serve serves a script as the program would, on its own HTTP/2, and returns its address.
func serve(t *testing.T, s *script) (addr string) {
	t.Helper()
	services, err := api.New(api.Config{
		Store: storetest.NewMemory(time.Now), Logger: slog.New(slog.DiscardHandler),
		Observe: func(string, string, time.Duration) {}, Enter: func(context.Context) error { return nil },
		More: []api.Service{{Name: topicv1connect.ConsumerServiceName, Explain: explain,
			Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
				return topicv1connect.NewConsumerServiceHandler(scripted{s: s}, o...)
			}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for path, h := range services.Handlers() {
		mux.Handle(path, h)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := edge.NewServer(mux, slog.DiscardHandler)
	guard := edge.New(l, edge.Limits{Connections: 100}, slog.New(slog.DiscardHandler))
	guard.Install(srv.Server)
	done := make(chan struct{})
	go func() {
		_ = srv.Serve(guard)
		close(done)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
	return l.Addr().String()
}

// h2c is a client that speaks HTTP/2 without TLS.
func h2c(t *testing.T) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// one is an event with one message at a position.
func one(position int64) topic.Event {
	return topic.Event{Deliveries: []topic.Delivery{{Base: position, Count: 1,
		Pieces: [][]byte{stored(&topicv1.TopicMessage{Payload: []byte("x")})}}}}
}
