package streams

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
)

// A reader opens one stream and passes on its frames until the stream ends, which
// it does with an error.
type reader struct {
	name string
	read func(ctx context.Context, base, token string, take func(*deliveryv1.Frame)) error
}

// readers are the ways in which clients follow a stream.
var readers = []reader{
	{"connect over HTTP/1.1", connectReader(false)},
	{"connect over h2c", connectReader(true)},
	{"connect over h2c with pings", pingingReader},
	{"connect in JSON over HTTP/1.1", connectReader(false, connect.WithProtoJSON())},
	{"gRPC-Web over HTTP/1.1", connectReader(false, connect.WithGRPCWeb())},
	{"gRPC-Web over h2c", connectReader(true, connect.WithGRPCWeb())},
	{"gRPC by connect over h2c", connectReader(true, connect.WithGRPC())},
	{"grpc-go", grpcReader()},
	{"grpc-go with pings", grpcReader(
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))},
	{"server-sent events over HTTP/1.1", eventReader(false)},
	{"server-sent events over h2c", eventReader(true)},
}

// newTransport makes connections of its own.
func newTransport(h2 bool) *http.Transport {
	tr := &http.Transport{}
	if h2 {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	}
	return tr
}

type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

func connectReader(
	h2 bool, opts ...connect.ClientOption,
) func(context.Context, string, string, func(*deliveryv1.Frame)) error {
	return func(ctx context.Context, base, token string, take func(*deliveryv1.Frame)) error {
		tr := newTransport(h2)
		defer tr.CloseIdleConnections()
		return follow(ctx, tr, base, token, take, opts...)
	}
}

// pingingReader pings when nothing came for less than the time between heartbeats. That of
// grpc-go cannot be less than 10 s.
func pingingReader(ctx context.Context, base, token string, take func(*deliveryv1.Frame)) error {
	tr := newTransport(true)
	tr.HTTP2 = &http.HTTP2Config{SendPingTimeout: 10 * time.Second / divisor, PingTimeout: 5 * time.Second}
	defer tr.CloseIdleConnections()
	return follow(ctx, tr, base, token, take)
}

// follow reads a stream by connect on a transport.
func follow(
	ctx context.Context, tr http.RoundTripper, base, token string, take func(*deliveryv1.Frame),
	opts ...connect.ClientOption,
) error {
	c := deliveryv1connect.NewDeliveryServiceClient(&http.Client{Transport: bearer{token, tr}}, base, opts...)
	stream, err := c.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		for _, f := range stream.Msg().GetFrames() {
			take(f)
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return io.EOF
}

func grpcReader(opts ...grpc.DialOption) func(context.Context, string, string, func(*deliveryv1.Frame)) error {
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	return func(ctx context.Context, base, token string, take func(*deliveryv1.Frame)) error {
		conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(base, "http://"), opts...)
		if err != nil {
			return err
		}
		defer conn.Close()
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
			deliveryv1connect.DeliveryServiceSubscribeProcedure)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(&deliveryv1.SubscribeRequest{}); err != nil {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		for {
			res := &deliveryv1.SubscribeResponse{}
			if err := stream.RecvMsg(res); err != nil {
				return err
			}
			for _, f := range res.GetFrames() {
				take(f)
			}
		}
	}
}

func eventReader(h2 bool) func(context.Context, string, string, func(*deliveryv1.Frame)) error {
	return func(ctx context.Context, base, token string, take func(*deliveryv1.Frame)) error {
		tr := newTransport(h2)
		defer tr.CloseIdleConnections()
		return readEvents(ctx, tr, base, token, "", func(e event) error {
			if e.kind != "" {
				return fmt.Errorf("event %s: %s", e.kind, e.data)
			}
			f := &deliveryv1.Frame{}
			if err := protojson.Unmarshal([]byte(e.data), f); err != nil {
				return err
			}
			take(f)
			return nil
		})
	}
}

// event is a server-sent event.
type event struct{ kind, id, data string }

// readEvents reads server-sent events, from the one after an id on.
func readEvents(ctx context.Context, tr http.RoundTripper, base, token, after string, take func(event) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/v1/stream", http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	res, err := bearer{token, tr}.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if kind := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || kind != "text/event-stream" {
		b, _ := io.ReadAll(res.Body)
		return fmt.Errorf("status %d, type %q: %s", res.StatusCode, kind, b)
	}
	return parseEvents(res.Body, take)
}

func parseEvents(from io.Reader, take func(event) error) error {
	var e event
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			if e.data != "" {
				if err := take(e); err != nil {
					return err
				}
			}
			e = event{id: e.id} // an id holds until there is another
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "event":
			e.kind = value
		case "id":
			e.id = value
		case "data":
			e.data += value
		}
	}
}
