// Package tail follows a user's stream: every change of the user's chats, each once and in
// order of the chat's versions, even if connections and servers fail.
//
// It keeps no messages, only how far each chat was shown ([Position]), so that it may run
// for any time; a program that wants a copy of the chats uses package client. It owns when
// the stream is opened again and where its gaps are filled from. Its callers own the use of
// the changes.
//
// # Guarantees
//
// A stream's token is taken over only after all that came before it was shown, and shown
// changes are remembered by the version of their chat. So a cut repeats nothing and leaves
// nothing out, other than what the server has dropped from a chat's log of changes: then a
// reset is shown, and after it the messages, which are never dropped.
//
// # Concurrency
//
// A Tail is used by one goroutine. Emit, Saved and Cut are called on that of Run.
package tail

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"connectrpc.com/connect"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/infra/wait"
)

const (
	silence      = 50 * time.Second // after which a stream is taken for dead
	callTimeout  = 30 * time.Second
	firstBackoff = 500 * time.Millisecond
	lastBackoff  = 30 * time.Second
	pageSize     = 100
)

// Config sets up a Tail. BaseURL, Token and Emit are required.
type Config struct {
	BaseURL string
	Token   bearer.Source
	HTTP    connect.HTTPClient // http.DefaultClient by default
	Options []connect.ClientOption

	// All begins with the first change of every chat, not with what comes next.
	All bool
	// From resumes where another Tail stopped; nil: there was none.
	From *Position

	// Emit takes a change: a frame with a message, a membership, a chat or a reset. Its
	// error ends Run.
	Emit func(*deliveryv1.Frame) error
	// Saved takes a position now and then, up to which all was emitted; may be nil. Its
	// error ends Run.
	Saved func(Position) error
	// Cut takes why the stream ended, nil for an end in order, before it is opened
	// again; may be nil.
	Cut func(error)
}

// Position is how far a Tail has come, in a form to be stored as JSON.
type Position struct {
	Generation string          `json:"generation"` // with Commit, what was shown at most, of the store's history
	Commit     int64           `json:"commit,omitempty"`
	Token      string          `json:"token"` // of the stream; empty: list all chats
	Chats      map[string]Mark `json:"chats"` // all that the user was a member of
}

// Mark is how far a chat was shown.
type Mark struct {
	Version  int64 `json:"version"`
	Sequence int64 `json:"sequence"` // of the last message
}

// EndedError is why Run ended by itself: the server ended the stream for good.
type EndedError struct{ Code deliveryv1.EndCode }

// Error names the reason.
func (e *EndedError) Error() string {
	if e.Code == deliveryv1.EndCode_END_CODE_REPLACED {
		return "tail: another stream of the user took this one's place"
	}
	return "tail: the session was ended"
}

// Tail follows one user's stream.
type Tail struct {
	cfg      Config
	messages messagev1connect.MessageServiceClient
	delivery deliveryv1connect.DeliveryServiceClient
	tokens   *bearer.Tokens

	at    Position
	begun bool // at says where to resume
	all   bool // a chat that is new in the first list is shown from its first change on
	tries int  // streams since the last one that was complete
	again bool // the bearer token was refused since then, and is another one now
	end   *deliveryv1.End
}

// New makes a Tail. It connects to nothing yet.
func New(cfg Config) (*Tail, error) {
	if cfg.BaseURL == "" || cfg.Token == nil || cfg.Emit == nil {
		return nil, errors.New("tail: base URL, token source and what takes the changes are required")
	}
	if cfg.HTTP == nil {
		cfg.HTTP = http.DefaultClient
	}
	if cfg.Saved == nil {
		cfg.Saved = func(Position) error { return nil }
	}
	if cfg.Cut == nil {
		cfg.Cut = func(error) {}
	}
	t := &Tail{cfg: cfg, tokens: bearer.New(cfg.Token), at: Position{Chats: map[string]Mark{}}, all: cfg.All}
	if cfg.From != nil {
		t.at, t.begun = *cfg.From, true
		t.at.Chats = map[string]Mark{}
		maps.Copy(t.at.Chats, cfg.From.Chats)
	}
	options := append([]connect.ClientOption{connect.WithInterceptors(t.tokens)}, cfg.Options...)
	t.messages = messagev1connect.NewMessageServiceClient(cfg.HTTP, cfg.BaseURL, options...)
	t.delivery = deliveryv1connect.NewDeliveryServiceClient(cfg.HTTP, cfg.BaseURL, options...)
	return t, nil
}

// Position is how far the Tail has come; to be called while Run does not run.
func (t *Tail) Position() Position {
	p := t.at
	p.Chats = maps.Clone(t.at.Chats)
	return p
}

// Run follows the stream until ctx ends, whose error it returns. It ends by itself with an
// *EndedError, with an error of Emit or Saved, where no retry can help, a second bearer
// token that is refused included, and where the server cannot be reached in the beginning.
func (t *Tail) Run(ctx context.Context) error {
	for {
		before := t.begun
		why := t.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause, err := t.after(ctx, why)
		if err != nil && (!before && !t.begun || final(err)) {
			return err
		}
		t.cfg.Cut(why)
		if err := wait.For(ctx, pause); err != nil {
			return err
		}
	}
}

// follow catches up and reads one stream to its end.
func (t *Tail) follow(ctx context.Context) error {
	t.end = nil
	if t.at.Token == "" {
		if err := t.list(ctx); err != nil {
			return err
		}
	}
	return t.stream(ctx)
}

// after decides what the end of a stream means: how long to wait before the next one, and
// what is left of the error where that is not all that there is to do.
func (t *Tail) after(ctx context.Context, err error) (time.Duration, error) {
	pause := wait.Jittered(firstBackoff, lastBackoff, t.tries)
	tries := t.tries
	t.tries++
	if t.end != nil {
		switch t.end.GetCode() {
		case deliveryv1.EndCode_END_CODE_SESSION_REVOKED, deliveryv1.EndCode_END_CODE_REPLACED:
			return 0, &EndedError{t.end.GetCode()}
		case deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED:
			return pause, t.renew(ctx)
		case deliveryv1.EndCode_END_CODE_DRAIN: // the server spreads its clients itself
			if tries == 0 {
				pause = 0
			}
		}
		return max(pause, t.end.GetReconnectAfter().AsDuration()), err
	}
	switch {
	case errors.Is(err, errStartOver):
		return pause, nil
	case reason(err) == reasonHistory: // the shown messages no longer exist
		if err := t.startOver(""); !errors.Is(err, errStartOver) {
			return 0, err
		}
		return pause, nil
	case reason(err) == reasonSessionRevoked:
		return 0, &EndedError{deliveryv1.EndCode_END_CODE_SESSION_REVOKED}
	case reason(err) == reasonInvalidToken: // of the stream: too old
		t.at.Token = ""
		return pause, nil
	case connect.CodeOf(err) == connect.CodeUnauthenticated && !t.again:
		t.again = true
		return pause, t.renew(ctx)
	}
	return pause, err
}

// renew gets another bearer token.
func (t *Tail) renew(ctx context.Context) error {
	_, err := t.tokens.Token(ctx, true)
	return err
}

// final reports whether no retry can help.
func final(err error) bool {
	var ended *EndedError
	var local *localError
	if errors.As(err, &ended) || errors.As(err, &local) {
		return true
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodePermissionDenied, connect.CodeNotFound, connect.CodeUnimplemented,
		connect.CodeFailedPrecondition, connect.CodeUnauthenticated:
		return err != nil
	}
	return false
}

// localError is a failure of Emit or Saved.
type localError struct{ error }

// Unwrap returns the failure itself.
func (e *localError) Unwrap() error { return e.error }

// errStartOver is the end of a stream whose versions mean nothing any more.
var errStartOver = errors.New("tail: the server started over")

// errRestarted is the end of a stream of a server that is another process by now.
var errRestarted = errors.New("tail: the server was started again")

// errBehind is an answer that is older than what is known to exist.
func errBehind(chatID string) error { return fmt.Errorf("tail: %s is not there yet", chatID) }
