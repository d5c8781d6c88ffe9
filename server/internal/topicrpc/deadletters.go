package topicrpc

import (
	"context"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/gen/parley/link/v1/linkv1connect"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Bounds of an answer to ScanLetters, and of a request.
const (
	maxDeadLetters = 200
	maxBytes       = 1 << 20
	maxTime        = 5 * time.Second
	maxRequest     = 4 << 20
)

// DeadLetterConfig is what a DeadLetterServer works with. All of it is required.
type DeadLetterConfig struct {
	Route connect.Interceptor // finds the service of each call, or passes it on
	// Identify returns the caller.
	Identify func(ctx context.Context) Identity
}

// DeadLetterServer has the handlers.
type DeadLetterServer struct{ cfg DeadLetterConfig }

var _ linkv1connect.LetterServiceHandler = (*DeadLetterServer)(nil)

// NewDeadLetterServer makes a DeadLetterServer.
func NewDeadLetterServer(c DeadLetterConfig) *DeadLetterServer { return &DeadLetterServer{c} }

// Service is the service, for package api.
func (s *DeadLetterServer) Service() api.Service {
	return Routed(api.Service{Name: linkv1connect.LetterServiceName,
		Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return linkv1connect.NewLetterServiceHandler(s, append(o, connect.WithReadMaxBytes(maxRequest))...)
		}}, s.cfg.Route)
}

// dead letters are those of a call's slot.
func (s *DeadLetterServer) letters(ctx context.Context) (*topic.DeadLetterStore, error) {
	if !s.cfg.Identify(ctx).Operator {
		return nil, refusal.New(refusal.TopicForbidden, "dead letters are for operators")
	}
	of := ServiceOf(ctx)
	if of == nil {
		return nil, ErrMode
	}
	return of.DeadLetters(), nil
}

// errFull ends a scan.
var errFull = errors.New("topicrpc: the answer is full")

// ScanLetters implements LetterService. The group is compared here and not by the scan, so
// that it is known how far that is when nothing fits.
func (s *DeadLetterServer) ScanLetters(
	ctx context.Context, req *linkv1.ScanLettersRequest,
) (*linkv1.ScanLettersResponse, error) {
	all, err := s.letters(ctx)
	if err != nil {
		return nil, err
	}
	sel := topic.SelectionFromWire(req.GetSelection())
	group := sel.Group
	sel.Group = ""
	answer := &linkv1.ScanLettersResponse{}
	looked, size, until := 0, 0, time.Now().Add(maxTime)
	err = all.Scan(ctx, sel, topic.PositionFromWire(req.GetFrom()), func(l topic.DeadLetter) error {
		// One is checked, however late it is: a call gets on.
		if len(answer.Letters) == maxDeadLetters || size >= maxBytes || looked > 0 && time.Now().After(until) {
			answer.Next = topic.PositionToWire(l.LogPosition)
			return errFull
		}
		looked++
		if group == "" || group == l.Group {
			m := topic.DeadLetterToWire(l)
			answer.Letters = append(answer.Letters, m)
			size += proto.Size(m)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errFull) {
		return nil, err
	}
	return answer, nil
}

// CheckLetters implements LetterService.
func (s *DeadLetterServer) CheckLetters(
	ctx context.Context, req *linkv1.CheckLettersRequest,
) (*linkv1.CheckLettersResponse, error) {
	all, err := s.letters(ctx)
	if err != nil {
		return nil, err
	}
	answer := &linkv1.CheckLettersResponse{}
	list := make([]topic.DeadLetter, len(req.GetLetters()))
	for i, r := range req.GetLetters() {
		list[i] = topic.DeadLetterRefFromWire(r)
		taken, err := all.Taken(ctx, list[i])
		if err != nil {
			return nil, err
		}
		answer.Taken = append(answer.Taken, taken)
	}
	answer.There, err = all.There(ctx, list)
	return answer, err
}

// RedriveLetter implements LetterService.
func (s *DeadLetterServer) RedriveLetter(
	ctx context.Context, req *linkv1.RedriveLetterRequest,
) (*linkv1.RedriveLetterResponse, error) {
	gone, err := s.do(ctx, req.GetLetter(), (*topic.DeadLetterStore).Redrive)
	return &linkv1.RedriveLetterResponse{Gone: gone}, err
}

// DiscardLetter implements LetterService.
func (s *DeadLetterServer) DiscardLetter(
	ctx context.Context, req *linkv1.DiscardLetterRequest,
) (*linkv1.DiscardLetterResponse, error) {
	gone, err := s.do(ctx, req.GetLetter(), (*topic.DeadLetterStore).Discard)
	return &linkv1.DiscardLetterResponse{Gone: gone}, err
}

// do does something about the dead letter at a position, if it is the one that is
// meant.
func (s *DeadLetterServer) do(
	ctx context.Context, ref *linkv1.LetterRef, what func(*topic.DeadLetterStore, context.Context, topic.DeadLetter) error,
) (gone bool, err error) {
	all, err := s.letters(ctx)
	if err != nil {
		return false, err
	}
	want := topic.DeadLetterRefFromWire(ref)
	var found *topic.DeadLetter
	only := topic.DeadLetterSelection{Positions: []topic.DeadLetterPosition{want.LogPosition}}
	err = all.Scan(ctx, only, want.LogPosition, func(l topic.DeadLetter) error {
		if l.Number == want.Number {
			found = &l
		}
		return errFull
	})
	if err != nil && !errors.Is(err, errFull) {
		return false, err
	}
	if found == nil {
		return true, nil
	}
	err = what(all, ctx, *found)
	if errors.Is(err, topic.ErrDeadLetterGone) {
		return true, nil
	}
	return false, err
}
