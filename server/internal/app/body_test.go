package app

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are in memory, so that time is the
// test's.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p.conns <- server
	return client, nil
}

// bounded serves a handler behind the bounds of bodies; clients speak HTTP/1 or 2.
func bounded(t *testing.T, major int, h http.HandlerFunc) (*http.Client, *pipes) {
	t.Helper()
	var both, one http.Protocols
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	one.SetHTTP1(major == 1)
	one.SetUnencryptedHTTP2(major == 2)
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	srv := &http.Server{Handler: defaultBounds.wrap(h), Protocols: &both, IdleTimeout: 24 * time.Hour}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(p) }()
	tr := &http.Transport{DialContext: p.dial, Protocols: &one}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		_ = srv.Close()
		<-served
	})
	return &http.Client{Transport: tr}, p
}

// An answer does not wait for a body that never comes (S-27, S-36).
func TestRefusalDoesNotWaitForTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := bounded(t, 1, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
		conn, err := p.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		began := time.Now()
		if _, err := io.WriteString(conn, "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if took := time.Since(began); res.StatusCode != http.StatusUnauthorized || took > 2*time.Second || !res.Close {
			t.Fatalf("%s after %v, connection ends: %v", res.Status, took, res.Close)
		}
	})
}

// slowly sends a request whose body comes a byte a second, and returns the answer. In HTTP/1 that goes over the
// connection itself: once the server has answered and hung up, a client of net/http may report that it could not
// write the rest, in place of the answer that it has read.
func slowly(t *testing.T, major int, client *http.Client, p *pipes) (*http.Response, error) {
	t.Helper()
	feed := func(w io.Writer, end func() error) {
		fed := make(chan struct{})
		go func() {
			defer close(fed)
			for {
				time.Sleep(time.Second)
				if _, err := w.Write([]byte{' '}); err != nil {
					return
				}
			}
		}()
		t.Cleanup(func() {
			_ = end()
			<-fed
		})
	}
	if major == 2 {
		body, w := io.Pipe()
		feed(w, body.Close)
		return client.Post("http://x/", "application/json", body)
	}
	conn, err := p.dial(t.Context(), "", "")
	if err != nil {
		return nil, err
	}
	feed(conn, conn.Close)
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		return nil, err
	}
	return http.ReadResponse(bufio.NewReader(conn), nil)
}

// A handler does not wait for ever for a body that comes too slowly, and can
// still say so (S-27).
func TestSec_S_27_SlowBodyIsCut(t *testing.T) {
	for major := 1; major <= 2; major++ {
		synctest.Test(t, func(t *testing.T) {
			client, p := bounded(t, major, func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.ReadAll(r.Body); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("HTTP/%d: reading ends with %v", major, err)
				}
				w.WriteHeader(http.StatusRequestTimeout)
			})
			began := time.Now()
			res, err := slowly(t, major, client, p)
			if err != nil {
				t.Fatalf("HTTP/%d: %v", major, err)
			}
			defer res.Body.Close()
			if took := time.Since(began); res.StatusCode != http.StatusRequestTimeout ||
				took > (15+2)*time.Second {
				t.Fatalf("HTTP/%d: %s after %v", major, res.Status, took)
			}
		})
	}
}

// A stream continues for as long as it likes once its request was read, and sees
// when its client leaves; so does a stream in both directions of reflection.
func TestStreamsOutliveTheBound(t *testing.T) {
	for major := 1; major <= 2; major++ {
		for _, path := range []string{"/parley.delivery.v1.DeliveryService/Subscribe",
			"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
			synctest.Test(t, func(t *testing.T) {
				left := make(chan error, 1)
				client, _ := bounded(t, major, func(w http.ResponseWriter, r *http.Request) {
					if b, err := io.ReadAll(r.Body); err != nil || string(b) != "{}" {
						t.Errorf("HTTP/%d: read %q, %v", major, b, err)
					}
					for range 10 {
						time.Sleep(time.Hour) // of the test's time
						if err := r.Context().Err(); err != nil {
							t.Errorf("HTTP/%d: %v", major, err)
						}
						_, _ = io.WriteString(w, "beat")
						_ = http.NewResponseController(w).Flush() // the last is where the client leaves
					}
					<-r.Context().Done()
					left <- r.Context().Err()
				})
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				var body io.Reader = strings.NewReader("{}")
				if strings.Contains(path, "reflection") { // the rest of the request comes late
					late, feed := io.Pipe()
					go func() {
						_, _ = feed.Write([]byte("{"))
						time.Sleep(time.Hour)
						_, _ = feed.Write([]byte("}"))
						_ = feed.Close()
					}()
					body = late
				}
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://x"+path, body)
				if err != nil {
					t.Fatal(err)
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				if _, err := io.ReadFull(res.Body, make([]byte, 10*len("beat"))); err != nil {
					t.Fatalf("HTTP/%d: %v", major, err)
				}
				leave()
				if err := <-left; !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				synctest.Wait()
			})
		}
	}
}

// A connection serves on after bodies that were read, that were not, and that
// were cut just when the handler returned.
func TestConnectionsAreKept(t *testing.T) {
	for major := 1; major <= 2; major++ {
		synctest.Test(t, func(t *testing.T) {
			client, _ := bounded(t, major, func(_ http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/read":
					_, _ = io.Copy(io.Discard, r.Body)
				case "/late":
					time.Sleep(15 * time.Second)
				}
			})
			dials := 0
			tr := client.Transport.(*http.Transport)
			dial := tr.DialContext
			tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials++
				return dial(ctx, network, addr)
			}
			for _, path := range []string{"/read", "/left", "/read", "/none", "/read"} {
				res, err := client.Post("http://x"+path, "application/json", strings.NewReader(strings.Repeat("x", 1000)))
				if err != nil {
					t.Fatalf("HTTP/%d %s: %v", major, path, err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				time.Sleep(time.Minute)
			}
			if dials != 1 {
				t.Errorf("HTTP/%d: %d connections", major, dials)
			}
			for range 20 {
				res, err := client.Post("http://x/late", "application/json", strings.NewReader("x"))
				if err != nil {
					t.Fatalf("HTTP/%d: %v", major, err)
				}
				_ = res.Body.Close()
			}
			synctest.Wait()
		})
	}
}

// BenchmarkBodyBounds is what bounding a body adds to a request, without HTTP
// itself.
func BenchmarkBodyBounds(b *testing.B) {
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	for name, h := range map[string]http.Handler{"unbounded": h, "bounded": defaultBounds.wrap(h)} {
		b.Run(name, func(b *testing.B) {
			r, w := httptest.NewRequest(http.MethodPost, "/x", http.NoBody), httptest.NewRecorder()
			text := strings.NewReader("{}")
			for b.Loop() {
				text.Reset("{}")
				r.Body = io.NopCloser(text)
				h.ServeHTTP(w, r)
			}
		})
	}
}
