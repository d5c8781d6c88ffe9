package app

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/internal/topicrpc"
)

// bodyBounds bounds the wait for the bodies of requests: net/http bounds headers only, and
// a server-wide bound would end streams. Without one, a client that sends a header and no
// body holds a connection for ever. It does not even learn that a token is missing, because
// an answer waits for the rest of a body.
//
// Requests that consist of a stream are not bounded: those of reflection, and of consumers
// of topics, which HTTP/2 alone has, and which show a token before anything is read.
type bodyBounds struct {
	all  time.Duration // for the whole body
	rest time.Duration // for what no handler wanted, so that the connection can be used again
}

var defaultBounds = bodyBounds{all: 15 * time.Second, rest: 2 * time.Second}

func (b bodyBounds) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody || strings.HasPrefix(r.URL.Path, "/grpc.reflection.") ||
			r.ProtoMajor == 2 && r.URL.Path == topicrpc.BidiProcedure {
			next.ServeHTTP(w, r)
			return
		}
		body := &boundBody{ReadCloser: r.Body, w: w}
		body.timer = time.AfterFunc(b.all, body.cut)
		defer body.release(r.ProtoMajor, b.rest)
		// A copy: net/http goes by the body of its own request afterwards.
		own := r.WithContext(r.Context())
		own.Body = body
		next.ServeHTTP(w, own)
	})
}

// boundBody is a body that is cut when its time is over. A timer costs less than
// a deadline, which goes through the loop of an HTTP/2 connection, and almost all
// bodies are there at once.
type boundBody struct {
	io.ReadCloser
	w     http.ResponseWriter
	timer *time.Timer

	mu   sync.Mutex
	done bool // nothing is left to wait for, or to set deadlines on
}

// Read implements io.Reader.
func (b *boundBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.timer.Stop()
		b.finish()
	}
	return n, err
}

func (b *boundBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = true
}

// cut makes reads fail from now on; writes still work.
func (b *boundBody) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		b.deadline(0)
	}
}

// release ends the handler's time with the body. In HTTP/1 the server reads the rest
// before it answers; in HTTP/2 it refuses it.
func (b *boundBody) release(major int, rest time.Duration) {
	b.timer.Stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done && major == 1 {
		b.deadline(rest)
	}
	b.done = true
}

// deadline ends reading after some time. Every writer of net/http can.
func (b *boundBody) deadline(in time.Duration) {
	_ = http.NewResponseController(b.w).SetReadDeadline(time.Now().Add(in))
}
