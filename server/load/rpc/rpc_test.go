package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type text = wrapperspb.StringValue

// serve starts a server with a call that repeats what it is given and a stream that counts.
func serve(t *testing.T, secure bool) Target {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/echo", connect.NewUnaryHandler("/echo",
		func(ctx context.Context, req *connect.Request[text]) (*connect.Response[text], error) {
			token := req.Header().Get("Authorization")
			switch req.Msg.GetValue() {
			case "refuse":
				return nil, connect.NewError(connect.CodeNotFound, errors.New("no such thing"))
			case "wait":
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return connect.NewResponse(wrapperspb.String(token + " " + req.Msg.GetValue())), nil
		}))
	mux.Handle("/count", connect.NewServerStreamHandler("/count",
		func(_ context.Context, req *connect.Request[text], st *connect.ServerStream[text]) error {
			var n, size int
			if _, err := fmt.Sscan(req.Msg.GetValue(), &n, &size); err != nil {
				return connect.NewError(connect.CodeInvalidArgument, err)
			}
			for i := range n {
				if err := st.Send(wrapperspb.String(fmt.Sprint(i, strings.Repeat("x", size)))); err != nil {
					return err
				}
			}
			return nil
		}))
	s := httptest.NewUnstartedServer(mux)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetHTTP2(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 4}
	target := Target{Protocol: Connect}
	if secure {
		s.EnableHTTP2 = true
		s.StartTLS()
		target.TLS = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	target.Address = s.Listener.Addr().String()
	return target
}

// callers are all ways to call a server.
func callers(t *testing.T) map[string]Caller {
	t.Helper()
	list := map[string]Caller{}
	for _, secure := range []bool{false, true} {
		target := serve(t, secure)
		list[fmt.Sprint("HTTP/1.1, TLS: ", secure)] = NewPool(target)
		for _, p := range []Protocol{Connect, GRPC} {
			target.Protocol = p
			c, err := target.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			list[fmt.Sprintf("%s, TLS: %v", p, secure)] = c
		}
	}
	for _, c := range list {
		t.Cleanup(c.Close)
	}
	return list
}

func echo(ctx context.Context, c Caller, value string) (string, error) {
	req, err := proto.Marshal(wrapperspb.String(value))
	if err != nil {
		return "", err
	}
	b, err := c.Call(ctx, "secret", "/echo", req)
	var res text
	if err == nil {
		err = proto.Unmarshal(b, &res)
	}
	return res.GetValue(), err
}

func TestCall(t *testing.T) {
	for name, c := range callers(t) {
		t.Run(name, func(t *testing.T) {
			// Large answers need both windows again and again.
			for _, value := range []string{"hello", strings.Repeat("y", 15<<10), ""} {
				if got, err := echo(t.Context(), c, value); err != nil || got != "Bearer secret "+value {
					t.Errorf("%.20q: %.40q, %v", value, got, err)
				}
			}
			_, err := echo(t.Context(), c, "refuse")
			if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), "no such thing") {
				t.Errorf("refused with %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if _, err := echo(ctx, c, "wait"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call that takes too long: %v", err)
			}
			if _, err := c.Call(t.Context(), "secret", "/nothing", nil); err == nil {
				t.Error("a call that the server does not have succeeds")
			}
			if got, err := echo(t.Context(), c, "again"); err != nil || got != "Bearer secret again" {
				t.Errorf("after failures: %q, %v", got, err)
			}
		})
	}
}

// More callers than the server takes streams of a connection wait for each other.
func TestManyCallers(t *testing.T) {
	for name, c := range callers(t) {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			for i := range 32 {
				wg.Go(func() {
					for j := range 20 {
						value := fmt.Sprint(i, " ", j)
						if got, err := echo(t.Context(), c, value); err != nil || got != "Bearer secret "+value {
							t.Errorf("%q: %q, %v", value, got, err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestStream(t *testing.T) {
	for _, p := range []Protocol{Connect, GRPC} {
		t.Run(string(p), func(t *testing.T) {
			target := serve(t, false)
			target.Protocol = p
			c, err := target.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for value, want := range map[string]int{"0 0": 0, "100 10": 100, "40 300000": 40, "nonsense": -1} {
				req, err := proto.Marshal(wrapperspb.String(value))
				if err != nil {
					t.Fatal(err)
				}
				got, end := 0, make(chan error, 1)
				err = c.Stream("secret", "/count", req, func(b []byte) {
					var res text
					if err := proto.Unmarshal(b, &res); err != nil || !strings.HasPrefix(res.GetValue(), fmt.Sprint(got)) {
						t.Errorf("message %d: %.20q, %v", got, res.GetValue(), err)
					}
					got++
				}, func(err error) { end <- err })
				if err != nil {
					t.Fatal(err)
				}
				switch err := <-end; {
				case want < 0 && connect.CodeOf(err) != connect.CodeInvalidArgument:
					t.Errorf("%s: ended with %v", value, err)
				case want >= 0 && (err != nil || got != want):
					t.Errorf("%s: %d messages, ended with %v", value, got, err)
				}
			}
		})
	}
}

// A connection that ends fails what is under way on it and what comes later.
func TestClosedConnection(t *testing.T) {
	c, err := serve(t, false).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := echo(t.Context(), c, "wait")
		waiting <- err
	}()
	if _, err := echo(t.Context(), c, "hello"); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := <-waiting; !errors.Is(err, errClosed) {
		t.Errorf("a call under way: %v", err)
	}
	if _, err := echo(t.Context(), c, "hello"); !errors.Is(err, errClosed) {
		t.Errorf("a later call: %v", err)
	}
}

func TestNobodyThere(t *testing.T) {
	target := Target{Address: "127.0.0.1:1", Protocol: Connect}
	if _, err := target.Dial(t.Context()); err == nil {
		t.Error("nobody takes a connection")
	}
	if _, err := NewPool(target).Call(t.Context(), "", "/echo", nil); err == nil {
		t.Error("nobody answers")
	}
}
