package h2

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// quiet is a client that says no more than it must, in a bubble of fake time.
type quiet struct {
	f      *http2.Framer
	conn   net.Conn
	goAway time.Duration // after which the server said that it ends the connection
	end    chan struct{} // the server has ended it
}

// newQuiet connects; the client answers pings or does not.
func newQuiet(t *testing.T, pongs bool) *quiet {
	t.Helper()
	began := time.Now()
	client, served := net.Pipe()
	srv := &Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
		MaxHeader: 1 << 10, Log: slog.New(slog.DiscardHandler)}
	q := &quiet{f: http2.NewFramer(client, client), conn: client, end: make(chan struct{})}
	go func() {
		defer close(q.end)
		srv.Serve(t.Context(), served)
		srv.Close() // its idle workers
	}()
	go func() {
		answers := http2.NewFramer(client, nil) // the other one belongs to the test
		for {
			f, err := q.f.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.PingFrame:
				if pongs {
					_ = answers.WritePing(true, f.Data)
				}
			case *http2.GoAwayFrame:
				q.goAway = time.Since(began)
			}
		}
	}()
	return q
}

// A peer that does not answer is cut, and one that answers only as long as it has a stream:
// no settings in 10 s, no frame in 20 s and no answer to a ping in 10 s more, no stream in
// three minutes.
func TestSilentPeers(t *testing.T) {
	for name, tt := range map[string]struct {
		settings, stream, pongs bool
		goAway, cut             time.Duration // 0: not within ten minutes
	}{
		"no settings":                     {cut: 10 * time.Second},
		"dead":                            {settings: true, cut: 30 * time.Second},
		"dead with a stream":              {settings: true, stream: true, cut: 30 * time.Second},
		"answers, without a stream":       {settings: true, pongs: true, goAway: 180 * time.Second, cut: 181 * time.Second},
		"answers, with a stream for ever": {settings: true, stream: true, pongs: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				q := newQuiet(t, tt.pongs)
				if tt.settings {
					must(t, q.f.WriteSettings())
				}
				if tt.stream {
					must(t, q.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(t), EndHeaders: true}))
				}
				select {
				case <-q.end:
					synctest.Wait() // for the client's reader
					if got := time.Since(began); got != tt.cut || q.goAway != tt.goAway {
						t.Errorf("cut after %v, told after %v, want %v and %v", got, q.goAway, tt.cut, tt.goAway)
					}
				case <-time.After(10 * time.Minute):
					if tt.cut > 0 {
						t.Errorf("still connected after ten minutes, want it cut after %v", tt.cut)
					}
					must(t, q.conn.Close())
					<-q.end
				}
			})
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// block is the headers of a request.
func block(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/"}, {":authority", "here"}} {
		must(t, enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
	}
	return b.Bytes()
}
