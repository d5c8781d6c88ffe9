// Package bearer puts an access token into each call of a client, and remembers it until
// another one is needed.
//
// It owns where the token stands in a request; where tokens come from, and when another one
// is due, is its users' business. Concurrency: Tokens are safe for concurrent use.
package bearer

import (
	"context"
	"sync"

	"connectrpc.com/connect"
)

// Source returns a token; with renew, another one than before, which was refused or ends
// soon.
type Source func(ctx context.Context, renew bool) (string, error)

// SourceError is why a call was not made: the source returned an error. Its code says nothing about the call.
type SourceError struct{ Err error }

// Error is the error of the source.
func (e *SourceError) Error() string { return "token: " + e.Err.Error() }

// Unwrap returns the error of the source.
func (e *SourceError) Unwrap() error { return e.Err }

// Tokens is an interceptor that adds the token to calls.
type Tokens struct {
	source Source

	mu   sync.Mutex
	last string
}

var _ connect.Interceptor = (*Tokens)(nil)

// New makes Tokens of a source.
func New(source Source) *Tokens { return &Tokens{source: source} }

// Token returns the token of calls; with renew, another one, which calls have from then on.
func (t *Tokens) Token(ctx context.Context, renew bool) (string, error) {
	t.mu.Lock()
	last := t.last
	t.mu.Unlock()
	if last != "" && !renew {
		return last, nil
	}
	last, err := t.source(ctx, renew && last != "")
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	t.last = last
	t.mu.Unlock()
	return last, nil
}

// WrapUnary implements connect.Interceptor.
func (t *Tokens) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		token, err := t.Token(ctx, false)
		if err != nil {
			return nil, &SourceError{err}
		}
		req.Header().Set("Authorization", "Bearer "+token)
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (t *Tokens) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		// Without a token the server refuses, and a new one is asked for.
		if token, err := t.Token(ctx, false); err == nil {
			conn.RequestHeader().Set("Authorization", "Bearer "+token)
		}
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (*Tokens) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
