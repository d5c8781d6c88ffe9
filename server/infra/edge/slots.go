package edge

import (
	"container/list"
	"context"
	"net/http"
	"sync"
	"time"
)

// Slots bound streams that need no token, in number and time. If there are too many the
// oldest ends: a client that is still there opens another, so no client is locked out.
type Slots struct {
	Max  int
	Time time.Duration

	mu   sync.Mutex
	open list.List // of func(), which end a stream, oldest first
}

// lastWords is the time that a stream has to end in order.
const lastWords = 2 * time.Second

// Wrap gives each request a slot.
func (s *Slots) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		end := &ending{w: w, cancel: cancel}
		defer end.over()
		slot := s.enter(end.begin)
		defer s.leave(slot)
		defer time.AfterFunc(s.Time, end.begin).Stop()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (s *Slots) enter(end func()) *list.Element {
	s.mu.Lock()
	var oldest *list.Element
	if s.open.Len() >= s.Max {
		oldest = s.open.Front()
		s.open.Remove(oldest)
	}
	slot := s.open.PushBack(end)
	s.mu.Unlock()
	if oldest != nil {
		oldest.Value.(func())()
	}
	return slot
}

func (s *Slots) leave(slot *list.Element) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open.Remove(slot) // nothing, if it had to go
}

// ending ends a request: its context ends, reads fail, and writes after a while.
// Nothing may be done with the writer when the handler has returned.
type ending struct {
	w      http.ResponseWriter
	cancel context.CancelFunc

	mu    sync.Mutex
	ended bool
	done  bool
}

func (e *ending) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done || e.ended {
		return
	}
	e.ended = true
	e.cancel()
	c := http.NewResponseController(e.w) // every writer of net/http can
	_ = c.SetReadDeadline(time.Now())
	_ = c.SetWriteDeadline(time.Now().Add(lastWords))
}

func (e *ending) over() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done = true
}

// Pages bound what answers at once and needs no token: how many answers may be written
// at a time, and for how long. Beyond it the answer is 503.
type Pages struct {
	Time  time.Duration
	slots chan struct{}
}

// NewPages makes bounds.
func NewPages(most int, limit time.Duration) *Pages {
	return &Pages{Time: limit, slots: make(chan struct{}, most)}
}

// Wrap puts the bounds in front of a handler.
func (p *Pages) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case p.slots <- struct{}{}:
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many of these requests at once", http.StatusServiceUnavailable)
			return
		}
		defer func() { <-p.slots }()
		c := http.NewResponseController(w) // every writer of net/http can; those of tests need not
		_ = c.SetWriteDeadline(time.Now().Add(p.Time))
		next.ServeHTTP(w, r)
		if r.ProtoMajor == 1 { // the connection may have another request
			_ = c.SetWriteDeadline(time.Time{})
		}
	})
}
