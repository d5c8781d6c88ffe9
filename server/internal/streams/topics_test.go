package streams

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
)

// A consumer is a member of a group on a stream, and passes on what it brings until the
// stream ends, which it does with an error.
type consumer struct {
	name    string
	consume func(ctx context.Context, base, token, group string, take func(*topicv1.ConsumeBidiResponse)) error
}

var consumers = []consumer{
	{"connect over HTTP/1.1", oneWay(false)},
	{"connect over h2c", oneWay(true)},
	{"connect in JSON over HTTP/1.1", oneWay(false, connect.WithProtoJSON())},
	{"gRPC-Web over HTTP/1.1", oneWay(false, connect.WithGRPCWeb())},
	{"gRPC by connect over h2c", oneWay(true, connect.WithGRPC())},
	{"connect over h2c, both ways", bothWays()},
	{"gRPC by connect over h2c, both ways", bothWays(connect.WithGRPC())},
	{"grpc-go, both ways", bothWaysByGRPC},
}

func attachTo(group string) *topicv1.Attach {
	return &topicv1.Attach{Topic: strings.TrimRight(group, "0123456789"), Group: group, Member: "m"}
}

// oneWay acknowledges by calls beside the stream.
func oneWay(
	h2 bool, opts ...connect.ClientOption,
) func(context.Context, string, string, string, func(*topicv1.ConsumeBidiResponse)) error {
	return func(ctx context.Context, base, token, group string, take func(*topicv1.ConsumeBidiResponse)) error {
		tr := newTransport(h2)
		defer tr.CloseIdleConnections()
		c := topicv1connect.NewConsumerServiceClient(&http.Client{Transport: bearer{token, tr}}, base, opts...)
		stream, err := c.Consume(ctx, &topicv1.ConsumeRequest{Attach: attachTo(group)})
		if err != nil {
			return err
		}
		defer stream.Close()
		session := ""
		for stream.Receive() {
			res := &topicv1.ConsumeBidiResponse{}
			switch body := stream.Msg().GetBody().(type) {
			case *topicv1.ConsumeResponse_Attached:
				session = body.Attached.GetSession()
			case *topicv1.ConsumeResponse_Alive:
				res.Body = &topicv1.ConsumeBidiResponse_Alive{Alive: body.Alive}
			case *topicv1.ConsumeResponse_Delivery:
				res.Body = &topicv1.ConsumeBidiResponse_Delivery{Delivery: body.Delivery}
				ack, err := c.Ack(ctx, &topicv1.AckRequest{Session: session, Set: setOf(body.Delivery)})
				if err != nil || len(ack.GetRefusals()) > 0 {
					return fmt.Errorf("acknowledge: %v, %w", ack, err)
				}
			}
			take(res)
		}
		if err := stream.Err(); err != nil {
			return err
		}
		return io.EOF
	}
}

func setOf(d *topicv1.Delivery) *topicv1.AckSet {
	return &topicv1.AckSet{Positions: []*topicv1.Positions{{Partition: d.GetPartition(), Base: d.GetBase(),
		Count: int64(len(d.GetMessages()))}}}
}

// conversation is a stream in both directions.
type conversation interface {
	Send(*topicv1.ConsumeBidiRequest) error
	Receive() (*topicv1.ConsumeBidiResponse, error)
}

// converse acknowledges on the stream itself.
func converse(c conversation, group string, take func(*topicv1.ConsumeBidiResponse)) error {
	if err := c.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{
		Attach: attachTo(group)}}); err != nil {
		return err
	}
	for {
		res, err := c.Receive()
		if err != nil {
			return err
		}
		if refused := res.GetSettled().GetRefusals(); len(refused) > 0 {
			return fmt.Errorf("refused: %v", refused)
		}
		if d := res.GetDelivery(); d != nil {
			if err := c.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{Ack: setOf(d)}}); err != nil {
				return err
			}
		}
		take(res)
	}
}

func bothWays(
	opts ...connect.ClientOption,
) func(context.Context, string, string, string, func(*topicv1.ConsumeBidiResponse)) error {
	return func(ctx context.Context, base, token, group string, take func(*topicv1.ConsumeBidiResponse)) error {
		tr := newTransport(true)
		defer tr.CloseIdleConnections()
		c := topicv1connect.NewConsumerServiceClient(&http.Client{Transport: bearer{token, tr}}, base, opts...)
		stream, err := c.ConsumeBidi(ctx)
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { _ = stream.CloseRequest() })() // then the server ends it
		return converse(stream, group, take)
	}
}

type raw struct{ grpc.ClientStream }

func (r raw) Send(m *topicv1.ConsumeBidiRequest) error { return r.SendMsg(m) }
func (r raw) Receive() (*topicv1.ConsumeBidiResponse, error) {
	m := &topicv1.ConsumeBidiResponse{}
	return m, r.RecvMsg(m)
}

func bothWaysByGRPC(ctx context.Context, base, token, group string, take func(*topicv1.ConsumeBidiResponse)) error {
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(base, "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := conn.NewStream(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token),
		&grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, topicv1connect.ConsumerServiceConsumeBidiProcedure)
	if err != nil {
		return err
	}
	return converse(raw{stream}, group, take)
}

// TestTopicsHeld holds an idle stream of a consumer and one with a message every eleven
// seconds by each way, directly and through a proxy of HTTP/2, all at once: none ends.
func TestTopicsHeld(t *testing.T) {
	t.Parallel()
	p := start(t)
	ways := []struct{ name, base string }{
		{"directly", "http://" + p.addr}, {"through an HTTP/2 proxy", httpProxy(t, p.addr, true, false).URL},
	}
	for _, topic := range []string{"idle", "trickling"} {
		p.rest("alice", http.MethodPut, "/topics/"+topic, `{"config":{"semantics":"SEMANTICS_PUB_SUB"}}`)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	var all []*watch
	for _, way := range ways {
		for _, c := range consumers {
			for _, topic := range []string{"idle", "trickling"} {
				group := fmt.Sprint(topic, len(all))
				p.rest("alice", http.MethodPost, "/topics/"+topic+"/subscriptions", `{"group":"`+group+`"}`)
				w := &watch{name: topic + " " + c.name + " " + way.name, user: group}
				reading.Go(func() { w.end(c.consume(ctx, way.base, p.token("alice"), group, w.takeTopic)) })
				all = append(all, w)
			}
		}
	}
	for _, w := range all {
		w.await(t, "its session", func() bool { return w.hellos > 0 })
	}
	began := time.Now()
	var said []string
	// Real clients are held for longer than the timers: the time that passes is the test.
	for next := time.Duration(0); next < held-time.Second/divisor; next += pause {
		time.Sleep(time.Until(began.Add(next)))
		said = append(said, fmt.Sprint("after ", next))
		p.rest("alice", http.MethodPost, "/topics/trickling/messages",
			`{"messages":[{"payload":"`+base64.StdEncoding.EncodeToString([]byte(said[len(said)-1]))+`"}]}`)
	}
	time.Sleep(time.Until(began.Add(held)))
	for _, w := range all {
		if strings.HasPrefix(w.name, "idle") {
			w.check(t, nil, 4) // one each 15 s
			continue
		}
		w.check(t, said, 0)
		res := &topicv1.GetSubscriptionResponse{}
		text := p.rest("alice", http.MethodGet, "/topics/trickling/subscriptions/"+w.user, "")
		p.must(protojson.Unmarshal([]byte(text), res))
		if at := res.GetSubscription().GetPartitions()[0]; at.GetPending() != 0 || at.GetFloor() != int64(len(said)) {
			t.Errorf("%s: not all is acknowledged: %v", w.name, at)
		}
	}
	cancel()
	p.kill() // some clients notice nothing else
	reading.Wait()
}

// takeTopic notes what a stream of a consumer brings. Its first response has a session.
func (w *watch) takeTopic(res *topicv1.ConsumeBidiResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case res.GetAlive() != nil:
		w.heartbeats++
	case res.GetDelivery() != nil:
		for _, m := range res.GetDelivery().GetMessages() {
			w.messages = append(w.messages, string(m.GetPayload()))
		}
	case res.GetSettled() == nil && w.hellos == 0:
		w.hellos++
	}
}
