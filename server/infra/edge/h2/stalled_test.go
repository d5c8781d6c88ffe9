package h2

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// stalled connects a client that reads what a server says first, which must begin with its
// settings, asks, and reads nothing more. It waits until nothing goes on.
func stalled(t *testing.T, h http.HandlerFunc, body []byte) (end func()) {
	t.Helper()
	client, served := net.Pipe() // without buffers
	srv := &Server{Handler: h, MaxHeader: 1 << 10, Log: slog.New(slog.DiscardHandler)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(t.Context(), served)
	}()
	f := http2.NewFramer(client, client)
	read := func(n int) {
		for range n {
			_, err := f.ReadFrame()
			must(t, err)
		}
	}
	read(2) // settings and the connection's window
	must(t, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}))
	read(1) // its acknowledgement
	must(t, f.WriteWindowUpdate(0, 1<<31-1-65535))
	must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(t), EndHeaders: true,
		EndStream: body == nil}))
	if body != nil {
		must(t, f.WriteData(1, false, body))
	}
	synctest.Wait()
	return func() {
		must(t, client.Close())
		<-done
		srv.Close()
	}
}

// A handler gets what it reads of a body although the client does not take the window that
// it gets back for it.
func TestReadDoesNotWaitForTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		end := stalled(t, func(_ http.ResponseWriter, r *http.Request) {
			n, _ = io.ReadFull(r.Body, make([]byte, 16<<10))
		}, make([]byte, 16<<10))
		if n != 16<<10 {
			t.Errorf("%d bytes were read, want all 16384 that have come", n)
		}
		end()
	})
}

// What a handler writes to a client that takes nothing waits in a bounded queue, whatever
// the windows of the client are.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		end := stalled(t, func(w http.ResponseWriter, _ *http.Request) {
			for n < 8<<20 {
				wrote, err := w.Write(make([]byte, 8<<10))
				if err != nil {
					return
				}
				n += wrote
			}
		}, nil)
		if n > 256<<10 {
			t.Errorf("%d KiB wait for a client that takes nothing, want at most 256", n>>10)
		}
		end()
	})
}

// The settings come first, also on a connection that a shutdown finds before it is served.
func TestSettingsComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, served := net.Pipe()
		srv := &Server{Handler: http.NotFoundHandler(), MaxHeader: 1 << 10, Log: slog.New(slog.DiscardHandler)}
		c := newConn(t.Context(), srv, served)
		c.drain()
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.serve()
		}()
		f := http2.NewFramer(client, client)
		var kinds []http2.FrameType
		for range 3 {
			frame, err := f.ReadFrame()
			must(t, err)
			kinds = append(kinds, frame.Header().Type)
		}
		testkit.Equal(t, "frames", kinds,
			[]http2.FrameType{http2.FrameSettings, http2.FrameWindowUpdate, http2.FrameGoAway})
		must(t, f.WriteSettings())
		_, err := f.ReadFrame() // the acknowledgement
		must(t, err)
		<-done // a second later
	})
}
