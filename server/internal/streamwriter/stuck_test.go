package streamwriter

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// faulty is a server's writer whose writes fail and whose flushes do not.
type faulty struct {
	http.ResponseWriter
	err error
}

func (f *faulty) Write(b []byte) (int, error) { return len(b), f.err }
func (f *faulty) FlushError() error           { return nil }

// A response that could not be written is no response that was sent, also where the server
// does not repeat its error at the flush.
func TestErrorOfAWrite(t *testing.T) {
	in := &faulty{ResponseWriter: httptest.NewRecorder(), err: errors.New("broken")}
	serve(in, func(out *Writer) {
		if err := out.Send("a", "b"); !errors.Is(err, in.err) {
			t.Errorf("%v for a send whose write failed, want %v", err, in.err)
		}
		if err := out.Send("c"); !errors.Is(err, in.err) {
			t.Errorf("%v for the next one, want %v", err, in.err)
		}
	})
}

// serve has f send on a writer of the server.
func serve(w http.ResponseWriter, f func(out *Writer)) {
	Collect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := New(r.Context(), connected{sends{w: w}})
		defer out.Close()
		w.Header().Set("Content-Type", "application/grpc")
		f(out)
	}), func(string) bool { return true }).ServeHTTP(w, httptest.NewRequestWithContext(context.Background(),
		http.MethodPost, "/p", nil))
}

// stuck is a server whose client stops reading: a write ends when its deadline has passed.
type stuck struct {
	http.ResponseWriter
	reads     bool          // the client still reads
	cut       chan struct{} // closed by a deadline in the past
	deadlines []time.Time
}

func (s *stuck) Write(b []byte) (int, error) { return len(b), s.WriteAndFlush(b) }
func (*stuck) FlushError() error             { return nil }

func (s *stuck) WriteAndFlush([]byte) error {
	if s.reads {
		return nil
	}
	<-s.cut
	return os.ErrDeadlineExceeded
}

func (s *stuck) SetWriteDeadline(at time.Time) error {
	s.deadlines = append(s.deadlines, at)
	if !at.After(time.Now()) {
		close(s.cut)
	}
	return nil
}

// A reader that takes nothing is cut after ten seconds of one response, whichever way that
// takes. One that is sent nothing for as long is not, and after the last response the end of
// the stream has ten seconds of its own.
func TestStuckReader(t *testing.T) {
	for name, m := range map[string]any{"through connect": "two", "the short way": wire("two")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := &stuck{ResponseWriter: httptest.NewRecorder(), reads: true, cut: make(chan struct{})}
				serve(in, func(out *Writer) {
					if err := out.Send(wire("one")); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Minute)
					if len(in.deadlines) > 0 {
						t.Errorf("deadlines %v between responses, want none", in.deadlines)
					}
					in.reads = false
					began := time.Now()
					if err := out.Send(m); !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("%v, want the deadline", err)
					}
					if got := time.Since(began); got != 10*time.Second {
						t.Errorf("cut after %v, want 10s", got)
					}
					in.reads = true
				})
				if n, want := len(in.deadlines), time.Now().Add(10*time.Second); n != 2 || !in.deadlines[n-1].Equal(want) {
					t.Errorf("deadlines %v, want a second one, in 10s, for the end of the stream", in.deadlines)
				}
			})
		})
	}
}
