package streamwriter

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/internal/codec"
	"github.com/parley-chat/parley/server/internal/racetest"
)

// A response waits only if at least four came just before it; under load they are two
// milliseconds apart.
func TestPace(t *testing.T) {
	var p Pace
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 100 { // one every two milliseconds, for as long as it goes
		if wait := p.wait(now); wait > 0 {
			t.Fatalf("response %d waits for %v", i, wait)
		}
		p.Spend(now)
		now = now.Add(2 * time.Millisecond)
	}
	now = now.Add(time.Second)
	var waits []time.Duration
	for range 8 { // eight at once
		wait := p.wait(now)
		waits = append(waits, wait)
		now = now.Add(wait)
		p.Spend(now)
	}
	for i, wait := range waits {
		if want := i > 4; (wait > 0) != want {
			t.Errorf("response %d of a burst waits for %v", i+1, wait)
		}
		if wait > 2*time.Millisecond {
			t.Errorf("response %d waits for %v", i+1, wait)
		}
	}
	if wait := p.wait(now.Add(time.Second)); wait > 0 {
		t.Errorf("a lone one waits for %v", wait)
	}
	now = now.Add(time.Hour)
	for range 500 { // a stream catches up: nothing waits
		p.Spend(now)
		now = now.Add(200 * time.Microsecond)
	}
	if wait := p.wait(now); wait > 2*time.Millisecond {
		t.Errorf("the first after a catch-up waits for %v", wait)
	}
}

// pieces is a writer that says how it was written to.
type pieces struct {
	http.ResponseWriter
	writes  []string
	flushes int
	err     error
}

func (p *pieces) Write(b []byte) (int, error) {
	p.writes = append(p.writes, string(b))
	return len(b), p.err
}

func (p *pieces) FlushError() error {
	p.flushes++
	return p.err
}

// What is written before a flush is one piece; an error of the server stands for all that
// follows, and what was written last is not lost when the handler returns.
func TestCollected(t *testing.T) {
	in := &pieces{ResponseWriter: httptest.NewRecorder()}
	long := bytes.Repeat([]byte("x"), 100<<10)
	var failed error
	only := func(procedure string) bool { return procedure == "/p" }
	Collect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, ok := r.Context().Value(collectorKey{}).(*collector)
		if !ok || out != w {
			t.Fatal("the handler does not find its response")
		}
		flush := func() { w.(http.Flusher).Flush() }
		write := func(b []byte) {
			if n, err := w.Write(b); n != len(b) || err != nil {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
		write([]byte("a"))
		write([]byte("b"))
		flush()
		flush()
		write(long)
		flush()
		if out.buffer != nil {
			t.Error("memory is held between responses")
		}
		write([]byte("c"))
		in.err = errors.New("broken")
		flush()
		_, failed = w.Write([]byte("d"))
		in.err, out.err = nil, nil
		write([]byte("e"))
	}), only).ServeHTTP(in, httptest.NewRequest(http.MethodPost, "/p", nil))
	if failed == nil {
		t.Error("a write after a failure succeeds")
	}
	if got := len(in.writes); got != 4 || in.writes[0] != "ab" || in.writes[1] != string(long) || in.writes[2] != "c" ||
		in.writes[3] != "e" || in.flushes != 4 {
		t.Errorf("%d writes, %d flushes", got, in.flushes)
	}
	Collect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if w != http.ResponseWriter(in) {
			t.Error("another procedure's answer is collected")
		}
	}), only).ServeHTTP(in, httptest.NewRequest(http.MethodPost, "/q", nil))
}

// sends notes what is sent, and what had reached the client by then.
type sends struct {
	w  http.ResponseWriter
	in *pieces
}

func (s sends) ResponseHeader() http.Header { return s.w.Header() }

func (s sends) Send(m any) error {
	_, err := s.w.Write([]byte(m.(string)))
	s.w.(http.Flusher).Flush()
	return err
}

// Responses that are sent together leave in one piece.
func TestResponsesLeaveTogether(t *testing.T) {
	in := &pieces{ResponseWriter: httptest.NewRecorder()}
	Collect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := New(r.Context(), sends{w, in})
		defer out.Close()
		for _, err := range []error{out.Send("a", "b", "c"), out.Send("d")} {
			if err != nil {
				t.Error(err)
			}
		}
		in.err = errors.New("broken")
		if out.Send("e") == nil {
			t.Error("a send to a broken connection succeeds")
		}
	}), func(string) bool { return true }).ServeHTTP(in, httptest.NewRequest(http.MethodPost, "/p", nil))
	if len(in.writes) != 3 || in.writes[0] != "abc" || in.writes[1] != "d" {
		t.Errorf("written: %q", in.writes)
	}
}

// server is a writer of a server that has a short way, behind a wrapper.
type server struct {
	pieces
	short []string
}

func (s *server) WriteAndFlush(b []byte) error {
	s.short = append(s.short, string(b))
	return s.err
}

type wrapper struct{ http.ResponseWriter }

func (w wrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// wire is a message that is encoded already.
type wire string

func (m wire) AppendWire(b []byte) ([]byte, error) {
	if m == "broken" {
		return nil, errors.New("broken")
	}
	return append(b, m...), nil
}

// connected sends as connect does, whatever the message is.
type connected struct{ sends }

func (c connected) Send(m any) error {
	if text, ok := m.(wire); ok {
		m = "connect " + string(text)
	}
	return c.sends.Send(m)
}

// The first response is connect's, and so are all whose bytes only connect knows. Of a stream
// of protobuf the others that are encoded go to the server itself, in their envelopes.
func TestShortWay(t *testing.T) {
	run := func(contentType string, w http.ResponseWriter, f func(out *Writer)) {
		Collect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", contentType)
			out := New(r.Context(), connected{sends{w: w}})
			defer out.Close()
			f(out)
		}), func(string) bool { return true }).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/p", nil))
	}
	for contentType, short := range map[string]bool{
		"application/connect+proto": true, "application/grpc": true, "application/grpc+proto": true,
		"application/grpc-web": true, "application/grpc-web+proto": true,
		"application/connect+json": false, "application/grpc+json": false, "application/connect+vnd.parley.events": false,
	} {
		in := &server{pieces: pieces{ResponseWriter: httptest.NewRecorder()}}
		run(contentType, wrapper{in}, func(out *Writer) {
			for _, err := range []error{out.Send(wire("1")), out.Send(wire("two")), out.Send("connect 3"),
				out.Send(wire("4"), wire("five")), out.Send(wire("six"), "connect 7")} {
				if err != nil {
					t.Error(contentType, err)
				}
			}
		})
		if got, want := in.writes, []string{"connect 1", "connect two", "connect 3", "connect 4connect five",
			"connect sixconnect 7"}; !short && !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", contentType, got, want)
		}
		if got, want := in.writes, []string{"connect 1", "connect 3", "\x00\x00\x00\x00\x03sixconnect 7"}; short &&
			!slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", contentType, got, want)
		}
		want := []string{"\x00\x00\x00\x00\x03two", "\x00\x00\x00\x00\x014\x00\x00\x00\x00\x04five"}
		if got := in.short; short && !slices.Equal(got, want) || !short && len(got) > 0 {
			t.Errorf("%s: %q to the server itself, want %q", contentType, got, want)
		}
	}
	plain := &pieces{ResponseWriter: httptest.NewRecorder()} // a server without a short way
	run("application/grpc", plain, func(out *Writer) {
		if err := errors.Join(out.Send(wire("1")), out.Send(wire("two"))); err != nil {
			t.Error(err)
		}
	})
	if want := []string{"connect 1", "\x00\x00\x00\x00\x03two"}; !slices.Equal(plain.writes, want) || plain.flushes != 2 {
		t.Errorf("%q, want %q; %d flushes", plain.writes, want, plain.flushes)
	}
	in := &server{pieces: pieces{ResponseWriter: httptest.NewRecorder()}}
	run("application/grpc", in, func(out *Writer) {
		if err := errors.Join(out.Send(wire("1")), out.Send(wire("2"))); err != nil {
			t.Error(err)
		}
		if err := out.Send(wire("broken")); err == nil {
			t.Error("a message that cannot be encoded was sent")
		}
		in.err = errors.New("gone")
		if out.Send(wire("3")) == nil {
			t.Error("a send to a broken connection succeeds")
		}
		in.err = nil
		if out.Send(wire("4")) == nil {
			t.Error("a send after a failure succeeds")
		}
	})
	if want := []string{"\x00\x00\x00\x00\x012", "\x00\x00\x00\x00\x013"}; !slices.Equal(in.short, want) {
		t.Errorf("%q, want %q", in.short, want)
	}
}

// counted is a writer with a short way, which counts how often it is taken.
type counted struct {
	http.ResponseWriter
	short *atomic.Int64
}

func (c counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c counted) WriteAndFlush(b []byte) error {
	c.short.Add(1)
	_, err := c.ResponseWriter.Write(b)
	return errors.Join(err, http.NewResponseController(c.ResponseWriter).Flush())
}

// Clients of each protocol read what took the short way, which is all but the first response
// where messages are protobuf.
func TestShortWayOfEachProtocol(t *testing.T) {
	const procedure = "/parley.delivery.v1.DeliveryService/Subscribe"
	const responses = 4
	var short atomic.Int64
	h := connect.NewServerStreamHandler(procedure, func(
		ctx context.Context, _ *connect.Request[deliveryv1.SubscribeRequest],
		stream *connect.ServerStream[deliveryv1.SubscribeResponse],
	) error {
		out := New(ctx, stream.Conn())
		defer out.Close()
		for i := range responses {
			if err := out.Send(&codec.Batch{First: int64(i + 1)}); err != nil {
				return err
			}
		}
		return connect.NewError(connect.CodeUnavailable, errors.New("the end"))
	}, append(codec.Options(), connect.WithCompressMinBytes(math.MaxInt))...)
	collected := Collect(h, func(string) bool { return true })
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		collected.ServeHTTP(counted{w, &short}, r)
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	for name, c := range map[string]struct {
		options []connect.ClientOption
		short   int64
	}{
		"Connect":       {nil, responses - 1},
		"Connect, JSON": {[]connect.ClientOption{connect.WithProtoJSON()}, 0},
		"gRPC":          {[]connect.ClientOption{connect.WithGRPC()}, responses - 1},
		"gRPC-Web":      {[]connect.ClientOption{connect.WithGRPCWeb()}, responses - 1},
	} {
		short.Store(0)
		client := connect.NewClient[deliveryv1.SubscribeRequest, deliveryv1.SubscribeResponse](srv.Client(),
			srv.URL+procedure, c.options...)
		stream, err := client.CallServerStream(t.Context(), connect.NewRequest(&deliveryv1.SubscribeRequest{}))
		if err != nil {
			t.Fatal(name, err)
		}
		var got []int64
		for stream.Receive() {
			got = append(got, stream.Msg().GetFirstPosition())
		}
		if want := []int64{1, 2, 3, 4}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if err := stream.Err(); connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("%s ends with %v", name, err)
		}
		if short.Load() != c.short {
			t.Errorf("%s: %d responses took the short way, want %d", name, short.Load(), c.short)
		}
		if err := stream.Close(); err != nil {
			t.Error(name, err)
		}
	}
}

// dropped is a server that keeps nothing.
type dropped struct{ pieces }

func (*dropped) WriteAndFlush([]byte) error { return nil }

// A response costs no memory on its way through a stream that has begun.
func TestResponsesCostNoMemory(t *testing.T) {
	racetest.SkipMemory(t)
	Collect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		out := New(r.Context(), connected{sends{w: w}})
		defer out.Close()
		var m any = wire("a message of a stream, encoded already")
		if n := testing.AllocsPerRun(1000, func() {
			if err := out.Send(m); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("a response costs %v allocations", n)
		}
	}), func(string) bool { return true }).ServeHTTP(&dropped{pieces{ResponseWriter: httptest.NewRecorder()}},
		httptest.NewRequest(http.MethodPost, "/p", nil))
}
