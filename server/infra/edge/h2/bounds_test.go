package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// What a client must not do ends its connection, with a reason.
func TestViolations(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(p *peer)
		code http2.ErrCode
	}{
		"data of a stream that is not there": {func(p *peer) {
			p.must(p.f.WriteData(1, true, nil))
		}, http2.ErrCodeProtocol},
		"a window of such a stream": {func(p *peer) { p.must(p.f.WriteWindowUpdate(1, 1)) }, http2.ErrCodeProtocol},
		"its reset": {func(p *peer) {
			p.must(p.f.WriteRSTStream(1, http2.ErrCodeCancel))
		}, http2.ErrCodeProtocol},
		"an even stream":         {func(p *peer) { p.ask(2, true) }, http2.ErrCodeProtocol},
		"a stream that is older": {func(p *peer) { p.ask(5, true); p.ask(3, true) }, http2.ErrCodeProtocol},
		"a window that overflows": {func(p *peer) {
			p.must(p.f.WriteWindowUpdate(0, 1<<31-1))
		}, http2.ErrCodeFlowControl},
		"a frame that is too large": {func(p *peer) {
			p.ask(1, false)
			p.must(p.f.WriteData(1, false, make([]byte, 17<<10)))
		}, http2.ErrCodeFrameSize},
		"a promise": {func(p *peer) {
			p.must(p.f.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true}))
		}, http2.ErrCodeProtocol},
		"a hundred settings and one more": {func(p *peer) {
			p.must(p.f.WriteSettings(make([]http2.Setting, 101)...))
		}, http2.ErrCodeProtocol},
		"an initial window that makes one overflow": {func(p *peer) {
			p.ask(1, true)
			p.must(p.f.WriteWindowUpdate(1, 1<<31-1-65535))
			p.must(p.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65536}))
		}, http2.ErrCodeFlowControl},
		"more data than the connection's window": {func(p *peer) {
			for id := uint32(1); id < 2*18; id += 2 { // 16 KiB more than it has
				p.ask(id, false)
				for range 4 {
					p.must(p.f.WriteData(id, false, make([]byte, 15<<10)))
				}
			}
		}, http2.ErrCodeFlowControl},
		"headers that cannot be read": {func(p *peer) {
			p.must(p.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff},
				EndHeaders: true}))
		}, http2.ErrCodeCompression},
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			tt.do(p)
			if code := p.goAway(); code != tt.code {
				t.Errorf("%v, want %v", code, tt.code)
			}
			_ = p.conn.Close()
			<-p.ended
		})
	}
	t.Run("no settings", func(t *testing.T) {
		c, s := net.Pipe()
		srv := &Server{Handler: http.NotFoundHandler(), MaxHeader: 1 << 10, Log: slog.New(slog.DiscardHandler)}
		go func() { _, _ = io.Copy(io.Discard, c) }()
		go func() {
			_ = http2.NewFramer(c, nil).WritePing(false, [8]byte{})
			_ = c.Close()
		}()
		srv.Serve(t.Context(), s) // returns
	})
}

// More streams than there may be are refused, and a reset one makes room.
func TestStreamsAreBounded(t *testing.T) {
	p := dial(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	for i := range uint32(250) {
		p.ask(1+2*i, true)
		if _, ok := p.next().(*http2.MetaHeadersFrame); !ok {
			t.Fatalf("stream %d is not served", i)
		}
	}
	p.ask(1001, true)
	if a := p.answer(1001); !a.cut || a.reset != http2.ErrCodeRefusedStream {
		t.Fatalf("%+v", a)
	}
	p.must(p.f.WriteRSTStream(1, http2.ErrCodeCancel))
	p.ask(1003, true)
	if f, ok := p.next().(*http2.MetaHeadersFrame); !ok || f.StreamID != 1003 {
		t.Fatalf("%v", f)
	}
}

// Handlers that go on after their streams were reset are bounded too: a client that opens
// streams and resets them at once has at most a thousand.
func TestHandlersAreBounded(t *testing.T) {
	release := make(chan struct{})
	p := dial(t, func(http.ResponseWriter, *http.Request) { <-release })
	id := uint32(1)
	for range 1000 {
		p.ask(id, true)
		p.must(p.f.WriteRSTStream(id, http2.ErrCodeCancel))
		id += 2
	}
	p.ask(id, true)
	if a := p.answer(id); !a.cut || a.reset != http2.ErrCodeRefusedStream {
		t.Errorf("%+v, want the stream refused", a)
	}
	close(release)
}

// A stream that nobody reads is cut by its deadline, and its neighbour lives.
func TestDeadlines(t *testing.T) {
	failed := make(chan error, 1)
	p := dial(t, func(w http.ResponseWriter, r *http.Request) {
		switch rc := http.NewResponseController(w); r.URL.Path {
		case "/stuck":
			timer := time.AfterFunc(50*time.Millisecond, func() { _ = rc.SetWriteDeadline(time.Unix(1, 0)) })
			defer timer.Stop()
			for {
				if _, err := w.Write(make([]byte, 8<<10)); err != nil {
					failed <- err
					return
				}
			}
		case "/body":
			if err := rc.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadAll(r.Body); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read: %v", err)
			}
			_, _ = io.WriteString(w, "in words")
		}
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 20 << 10})
	p.ask(1, true, ":path", "/stuck")
	if a := p.answer(1); !a.cut {
		t.Errorf("%+v", a)
	}
	if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write: %v", err)
	}
	p.ask(3, false, ":path", "/body")
	if a := p.answer(3); a.body != "in words" {
		t.Errorf("%+v", a)
	}
}

// Shutdown takes no further streams, lets those end that are open, and waits for them.
func TestShutdown(t *testing.T) {
	release, served := make(chan struct{}), atomic.Int64{}
	p := dial(t, func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-release
		_, _ = io.WriteString(w, "done")
	})
	p.ask(1, true)
	if _, ok := p.next().(*http2.MetaHeadersFrame); !ok {
		t.Fatal("no answer")
	}
	ended := make(chan error, 1)
	go func() { ended <- p.srv.Shutdown(context.Background()) }()
	if f, ok := p.next().(*http2.GoAwayFrame); !ok || f.LastStreamID != 1 || f.ErrCode != http2.ErrCodeNo {
		t.Fatalf("%v", f)
	}
	p.ask(3, false) // is not served, and no reason to end the others
	p.must(p.f.WriteData(3, true, []byte("x")))
	select {
	case err := <-ended:
		t.Fatalf("ended before the stream: %v", err)
	default:
	}
	close(release)
	f, ok := p.next().(*http2.DataFrame)
	for !ok { // the refusal of what came for the other
		f, ok = p.next().(*http2.DataFrame)
	}
	if string(f.Data()) != "done" {
		t.Errorf("%q", f.Data())
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := served.Load(); n != 1 {
		t.Errorf("%d streams were served, want the one that was open before the end was announced", n)
	}
}

// A client that ends the connection itself gets the answers of its open streams and no
// others.
func TestGoAwayOfTheClient(t *testing.T) {
	release, served := make(chan struct{}), atomic.Int64{}
	p := dial(t, func(http.ResponseWriter, *http.Request) {
		served.Add(1)
		<-release
	})
	p.ask(1, true)
	p.must(p.f.WriteGoAway(0, http2.ErrCodeNo, nil))
	p.ask(3, true)
	if code := p.goAway(); code != http2.ErrCodeNo {
		t.Errorf("%v, want no error", code)
	}
	p.must(p.f.WritePing(false, [8]byte{1}))
	if f, ok := p.next().(*http2.PingFrame); !ok {
		t.Errorf("%v, want the answer to the ping", f)
	}
	close(release)
	if a := p.answer(1); a.header[":status"] != "200" {
		t.Errorf("%+v", a)
	}
	<-p.ended
	if n := served.Load(); n != 1 {
		t.Errorf("%d streams were served, want the one that was open before the end was announced", n)
	}
}

// Many streams of one connection write at once: each gets what is its own, in order.
func TestManyWriters(t *testing.T) {
	const streams, pieces = 50, 40
	p := dial(t, func(w http.ResponseWriter, r *http.Request) {
		for i := range pieces {
			_, _ = fmt.Fprintf(w, "%s:%d ", r.URL.Path, i)
			w.(http.Flusher).Flush()
		}
	})
	for i := range uint32(streams) {
		p.ask(1+2*i, true, ":path", fmt.Sprint("/", 1+2*i))
	}
	got, ended := map[uint32]string{}, 0
	for ended < streams {
		switch f := p.next().(type) {
		case *http2.DataFrame:
			got[f.StreamID] += string(f.Data())
			if n := len(f.Data()); n > 0 {
				p.must(p.f.WriteWindowUpdate(0, uint32(n)))
			}
			if f.StreamEnded() {
				ended++
			}
		case *http2.RSTStreamFrame:
			t.Fatalf("%v", f)
		}
	}
	for id, text := range got {
		var want strings.Builder
		for i := range pieces {
			fmt.Fprintf(&want, "/%d:%d ", id, i)
		}
		if text != want.String() {
			t.Errorf("stream %d: %q", id, text)
		}
	}
}

// A client that makes the server answer and takes nothing is cut.
func TestAnswersAreBounded(t *testing.T) {
	c, s := net.Pipe() // without buffers
	defer c.Close()
	var log bytes.Buffer // read when the connection is over
	srv := &Server{Handler: http.NotFoundHandler(), MaxHeader: 1 << 10, Log: slog.New(slog.NewTextHandler(&log, nil))}
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(context.Background(), s)
	}()
	f := http2.NewFramer(c, c)
	for range 2 { // the server's settings and its window are read, and nothing after them
		if _, err := f.ReadFrame(); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; n < 200_000; n++ {
		if err := f.WritePing(false, [8]byte{}); err != nil {
			break
		}
	}
	<-done
	if n < 50_000 || n == 200_000 {
		t.Errorf("cut after %d pings", n)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "connection cut") ||
		!strings.Contains(text, "from=pipe") {
		t.Errorf("the log has %q, want one line that names the client", text)
	}
}
