package topic

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/history"
)

// ErrRestored is why a handler's context ends when the server was put back to an earlier copy of its
// data: the message may not be there any more.
var ErrRestored = errors.New("topic: the server was put back to an earlier copy of its data")

const reasonHistory = "HISTORY_CHANGED"

// errGeneration is the failure of a call whose answer may lack what another call was shown. It is
// made again.
var errGeneration = connect.NewError(connect.CodeUnavailable,
	errors.New("topic: the answer is of another generation of the server than one that came before it"))

// shown is an interceptor that knows up to where the client was shown the history of the server's
// store. It says so with each call and takes what answers say. A call of which the server does not
// have what was shown is refused, with nothing done: positions, and numbers of requests, may be those
// of something else there.
type shown struct {
	mu sync.Mutex
	at history.Commit // zero: nothing was shown
	// restored counts the refusals. It is raised with the loss of at: after that a stream may be
	// opened that shows the other history. A consumer therefore compares the count before it opens a
	// stream, and once more after: in between another call may have been refused.
	restored int
}

var _ connect.Interceptor = (*shown)(nil)

func (s *shown) position() history.Commit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// restores returns how often the server did not have what was shown.
func (s *shown) restores() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restored
}

// say puts into a call what was shown.
func (s *shown) say(h http.Header) (asked history.Commit) {
	if asked = s.position(); asked == (history.Commit{}) {
		h.Del(history.Header)
	} else {
		h.Set(history.Header, asked.String())
	}
	return asked
}

// reach takes up to where an answer may show the history, and reports whether it may be used. An answer
// of another generation has all that the client had been shown when it asked; if it has been shown more
// since, that may be missing there.
func (s *shown) reach(asked, to history.Commit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case to.Generation == s.at.Generation:
		s.at.Commit = max(s.at.Commit, to.Commit)
	case asked == s.at:
		s.at = to
	default:
		return false
	}
	return true
}

// follows takes a response of a stream, which may be used in the generation that the client is in.
func (s *shown) follows(to history.Commit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to.Generation != s.at.Generation {
		return false
	}
	s.at.Commit = max(s.at.Commit, to.Commit)
	return true
}

// failed forgets what was shown if the server does not have it. Other calls may have said the same.
func (s *shown) failed(asked history.Commit, err error) {
	if Reason(err) != reasonHistory {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if asked == s.at {
		s.at = history.Commit{}
		s.restored++
	}
}

// WrapUnary implements connect.Interceptor.
func (s *shown) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		asked := s.say(req.Header())
		res, err := next(ctx, req)
		if err != nil {
			s.failed(asked, err)
			return nil, err
		}
		// A server of an earlier release says nothing, and compares nothing.
		if to, ok := history.Parse(res.Header().Get(history.Header)); ok && !s.reach(asked, to) {
			return nil, errGeneration
		}
		return res, nil
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (s *shown) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		return &shownConn{StreamingClientConn: conn, shown: s, asked: s.say(conn.RequestHeader())}
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (*shown) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// shownConn is a stream of a consumer. One goroutine at a time may call Receive.
type shownConn struct {
	connect.StreamingClientConn
	shown      *shown
	asked      history.Commit
	generation string // that the stream shows; empty until it says so
}

// Receive implements connect.StreamingClientConn.
func (c *shownConn) Receive(m any) error {
	if err := c.StreamingClientConn.Receive(m); err != nil {
		c.shown.failed(c.asked, err)
		return err
	}
	res, ok := m.(interface {
		GetAttached() *topicv1.Attached
		GetCommit() int64
	})
	if !ok {
		return nil
	}
	if first := res.GetAttached(); first != nil {
		c.generation = first.GetGeneration()
		if to := (history.Commit{Generation: c.generation, Commit: res.GetCommit()}); c.generation != "" &&
			!c.shown.reach(c.asked, to) {
			return errGeneration
		}
		return nil
	}
	if c.generation != "" && !c.shown.follows(history.Commit{Generation: c.generation, Commit: res.GetCommit()}) {
		return errGeneration
	}
	return nil
}
