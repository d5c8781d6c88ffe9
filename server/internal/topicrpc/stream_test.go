package topicrpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic"
)

// both is a stream in both directions, whatever client holds it.
type both interface {
	Send(*topicv1.ConsumeBidiRequest) error
	Receive() (*topicv1.ConsumeBidiResponse, error)
	CloseRequest() error
}

// raw is such a stream of grpc-go.
type raw struct{ grpc.ClientStream }

func (r raw) Send(m *topicv1.ConsumeBidiRequest) error { return r.SendMsg(m) }
func (r raw) CloseRequest() error                      { return r.CloseSend() }
func (r raw) Receive() (*topicv1.ConsumeBidiResponse, error) {
	m := &topicv1.ConsumeBidiResponse{}
	return m, r.RecvMsg(m)
}

// clients open streams in both directions, each in its protocol.
var clients = map[string]func(t *testing.T, addr string) both{
	"connect":        byConnect(),
	"connect, JSON":  byConnect(connect.WithProtoJSON()),
	"gRPC":           byConnect(connect.WithGRPC()),
	"gRPC-Web":       byConnect(connect.WithGRPCWeb()),
	"gRPC, as JSON":  byConnect(connect.WithGRPC(), connect.WithProtoJSON()),
	"gRPC, compress": byConnect(connect.WithGRPC(), connect.WithSendGzip()),
	"grpc-go": func(t *testing.T, addr string) both {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, BidiProcedure)
		if err != nil {
			t.Fatal(err)
		}
		return raw{stream}
	},
}

func byConnect(options ...connect.ClientOption) func(*testing.T, string) both {
	return func(t *testing.T, addr string) both {
		stream, err := topicv1connect.NewConsumerServiceClient(h2c(t), "http://"+addr, options...).ConsumeBidi(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
}

func ackOf(base int64) *topicv1.ConsumeBidiRequest {
	return &topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{
		Ack: &topicv1.AckSet{Positions: []*topicv1.Positions{{Base: base}}}}}
}

var attach = &topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{
	Attach: &topicv1.Attach{Topic: "t", Group: "g"}}}

// open opens a stream of a script and attaches.
func open(t *testing.T, s *script, name string) both {
	t.Helper()
	stream := clients[name](t, serve(t, s))
	must(t, stream.Send(attach))
	res, err := stream.Receive()
	if must(t, err); res.GetAttached().GetSession() != "1-x" {
		t.Fatalf("the first response is %v", res)
	}
	return stream
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Both directions run at a time, in each protocol: a message comes only once the one
// before it is acknowledged, and a client that has sent all gets all answers.
func TestBothDirections(t *testing.T) {
	for name := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScript()
			s.ack = func(_ context.Context, set *topicv1.AckSet) ([]*topicv1.Refusal, error) {
				for _, p := range set.GetPositions() {
					s.events <- one(p.GetBase() + 1)
				}
				return nil, nil
			}
			stream := open(t, s, name)
			s.events <- one(0)
			const rounds = 200
			sent, settled := int64(1), int64(1)
			take := func() *topicv1.ConsumeBidiResponse {
				res, err := stream.Receive()
				must(t, err)
				if n := res.GetSettled().GetRequests(); n != 0 {
					if n < settled || n > sent {
						t.Fatalf("%d requests are settled after %d, %d were sent", n, settled, sent)
					}
					settled = n
				}
				return res
			}
			for round := range int64(rounds) {
				for {
					if d := take().GetDelivery(); d != nil {
						if d.GetBase() != round || len(d.GetMessages()) != 1 {
							t.Fatalf("message %d is %v", round, d)
						}
						break
					}
				}
				sent++
				must(t, stream.Send(ackOf(round)))
			}
			must(t, stream.CloseRequest())
			for {
				if _, err := stream.Receive(); err != nil {
					if !errors.Is(err, io.EOF) {
						t.Fatal(err)
					}
					break
				}
			}
			if _, positions := s.acked(); positions != rounds {
				t.Errorf("%d acknowledgements of %d", positions, rounds)
			}
		})
	}
}

// What comes while an acknowledgement becomes durable is acknowledged together, in order,
// and answered together; credits do not wait.
func TestAcknowledgementsAreGrouped(t *testing.T) {
	t.Parallel()
	s := newScript()
	release := make(chan struct{})
	s.ack = func(ctx context.Context, _ *topicv1.AckSet) ([]*topicv1.Refusal, error) {
		select {
		case <-release:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	stream := open(t, s, "gRPC")
	must(t, stream.Send(ackOf(0)))
	testkit.Eventually(t, "the first acknowledgement", func() bool { n, _ := s.acked(); return n == 1 })
	for i := range int64(300) {
		must(t, stream.Send(ackOf(i+1)))
	}
	must(t, stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Nack{
		Nack: &topicv1.NackSet{Positions: []*topicv1.Positions{{Base: 500}}}}}))
	must(t, stream.Send(ackOf(400)))
	must(t, stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Credits{
		Credits: &topicv1.Credits{Messages: 7}}}))
	testkit.Eventually(t, "the credits", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.credits == 7
	})
	close(release)
	var answers []int64
	refused := 0
	for len(answers) == 0 || answers[len(answers)-1] < 305 {
		res, err := stream.Receive()
		must(t, err)
		answers = append(answers, res.GetSettled().GetRequests())
		refused += len(res.GetSettled().GetRefusals())
	}
	if calls, positions := s.acked(); calls != 3 || positions != 302 {
		t.Errorf("%d calls for %d acknowledgements; want 3 for 302", calls, positions)
	}
	if len(answers) != 2 || refused != 1 {
		t.Errorf("answers %v with %d refusals", answers, refused)
	}
}

// A client that sends more than is settled is not read any further.
func TestRequestsAreBounded(t *testing.T) {
	s := newScript()
	s.ack = func(ctx context.Context, _ *topicv1.AckSet) ([]*topicv1.Refusal, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	q := newQueue()
	c := &conversation{in: s, queue: q}
	big := ackOf(0)
	big.GetAck().Positions[0].Count, big.GetAck().Positions[0].Bitmap = 65536, make([]byte, 8192)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		var wg sync.WaitGroup
		q.more, q.room = make(chan struct{}, 1), make(chan struct{}, 1)
		wg.Go(func() {
			_ = c.read(ctx, func() (*topicv1.ConsumeBidiRequest, error) {
				n++
				return proto.CloneOf(big), nil
			})
		})
		synctest.Wait()
		q.mu.Lock()
		size := q.size
		q.mu.Unlock()
		if n > 40 || size > maxWaiting+16<<10 {
			t.Errorf("%d requests of %d bytes wait", n, size)
		}
		cancel()
		wg.Wait()
	})
}

// The last message of a stream says why it ends, and so does its status.
func TestEndings(t *testing.T) {
	t.Parallel()
	for reason, code := range map[string]connect.Code{
		"SUBSCRIPTION_GONE": connect.CodeFailedPrecondition,
		"TOPIC_FORBIDDEN":   connect.CodePermissionDenied,
		"DRAINING":          connect.CodeUnavailable,
		"SLOW":              connect.CodeUnavailable,
		"REPLACED":          connect.CodeAborted,
		"TOPIC_DELETED":     connect.CodeNotFound,
		"TOKEN_EXPIRED":     connect.CodeUnauthenticated,
	} {
		s := newScript()
		stream := open(t, s, "connect")
		s.End(reason)
		res, err := stream.Receive()
		if must(t, err); res.GetGone().GetReason() != reason {
			t.Errorf("%s: the last message is %v", reason, res)
		}
		_, err = stream.Receive()
		testkit.Equal(t, reason, connect.CodeOf(err), code)
	}
}

// Requests that make no sense end the stream with an error that says why.
func TestBadRequestsOfStreams(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		req  *topicv1.ConsumeBidiRequest
		code connect.Code
	}{
		"attached twice":   {attach, connect.CodeInvalidArgument},
		"nothing":          {&topicv1.ConsumeBidiRequest{}, connect.CodeInvalidArgument},
		"far beyond":       {ackOf(1<<63 - 1), connect.CodeOutOfRange},
		"a negative place": {ackOf(-1), connect.CodeInvalidArgument},
		"a bitmap that is too long": {&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{Ack: &topicv1.AckSet{
			Positions: []*topicv1.Positions{{Count: 8, Bitmap: []byte{1, 1}}}}}}, connect.CodeInvalidArgument},
		"no positions": {&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{Ack: &topicv1.AckSet{}}},
			connect.CodeInvalidArgument},
	} {
		s := newScript()
		stream := open(t, s, "connect")
		if err := stream.Send(tt.req); err != nil && !errors.Is(err, io.EOF) { // the server may be done with its first bytes
			t.Fatal(err)
		}
		_, err := stream.Receive()
		testkit.Equal(t, name, connect.CodeOf(err), tt.code)
		if calls, _ := s.acked(); calls > 0 {
			t.Errorf("%s: something was acknowledged", name)
		}
	}
}

// A client that goes away ends its stream at once, also while an acknowledgement waits.
func TestClientsThatGo(t *testing.T) {
	t.Parallel()
	s := newScript()
	gone := make(chan struct{})
	s.ack = func(ctx context.Context, _ *topicv1.AckSet) ([]*topicv1.Refusal, error) {
		<-ctx.Done()
		close(gone)
		return nil, ctx.Err()
	}
	conn, err := grpc.NewClient("passthrough:///"+serve(t, s), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, BidiProcedure)
	must(t, err)
	must(t, stream.SendMsg(attach))
	must(t, stream.SendMsg(ackOf(0)))
	testkit.Eventually(t, "the acknowledgement", func() bool { n, _ := s.acked(); return n == 1 })
	must(t, conn.Close())
	<-gone
}

// notes is a connection that notes what is sent.
type notes struct {
	header http.Header
	mu     sync.Mutex
	sent   []any
}

func (n *notes) ResponseHeader() http.Header { return n.header }

func (n *notes) Send(m any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent = append(n.sent, m)
	return nil
}

// Something comes every 15 s, and no heartbeat sooner than that after anything else.
func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.events, s.ended = make(chan topic.Event, 9), make(chan string, 1)
		n := &notes{header: http.Header{}}
		out := newSender(t.Context(), s, n, nil)
		done := make(chan error, 1)
		go func() { done <- out.run(t.Context()) }()
		count := func() (alive, other int) {
			synctest.Wait()
			n.mu.Lock()
			defer n.mu.Unlock()
			for _, m := range n.sent {
				if r, ok := m.(*topicv1.ConsumeBidiResponse); ok && r.GetAlive() != nil {
					alive++
				} else {
					other++
				}
			}
			return alive, other
		}
		time.Sleep(46 * time.Second)
		if alive, other := count(); alive != 3 || other != 1 {
			t.Errorf("%d heartbeats, %d others in 46 s", alive, other)
		}
		for range 10 { // 100 s with a message each ten
			s.events <- one(1)
			time.Sleep(10 * time.Second)
		}
		if alive, other := count(); alive != 3 || other != 11 {
			t.Errorf("%d heartbeats, %d others while there are messages", alive, other)
		}
		s.End("DRAINING")
		if err := <-done; err == nil || err.Error() != goneWith("DRAINING").Error() {
			t.Errorf("ended with %v", err)
		}
		out.close()
	})
}
