// Package topicletters serves the dead letters of topics to the processes that serve
// operators: the RPCs of LetterService over package letters.
//
// It owns what is between the wire and the letters of one slot: how much is in an answer, and
// that what is done about a letter is done to what stands in its place. Which slot a call is
// in says its route (package topicroute); who may ask says its caller's chain.
//
// Concurrency: a Server may be used by many goroutines.
package topicletters

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
	"github.com/parley-chat/parley/server/internal/topicapi"
	"github.com/parley-chat/parley/server/topic/letters"
	"github.com/parley-chat/parley/server/topic/letters/letterwire"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Bounds of an answer to ScanLetters, and of a request.
const (
	maxLetters = 200
	maxBytes   = 1 << 20
	maxTime    = 5 * time.Second
	maxRequest = 4 << 20
)

// Config is what a Server works with. All of it is required.
type Config struct {
	Route connect.Interceptor // finds the service of each call, or passes it on
	// Identify says who calls.
	Identify func(ctx context.Context) topicapi.Identity
}

// Server has the handlers.
type Server struct{ cfg Config }

var _ linkv1connect.LetterServiceHandler = (*Server)(nil)

// New makes a Server.
func New(c Config) *Server { return &Server{c} }

// Service is the service, for package api.
func (s *Server) Service() api.Service {
	return topicapi.Routed(api.Service{Name: linkv1connect.LetterServiceName,
		Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return linkv1connect.NewLetterServiceHandler(s, append(o, connect.WithReadMaxBytes(maxRequest))...)
		}}, s.cfg.Route)
}

// letters are those of a call's slot.
func (s *Server) letters(ctx context.Context) (*letters.Letters, error) {
	if !s.cfg.Identify(ctx).Operator {
		return nil, refusal.New(refusal.TopicForbidden, "dead letters are for operators")
	}
	of := topicapi.ServiceOf(ctx)
	if of == nil {
		return nil, topicapi.ErrMode
	}
	return of.Letters(), nil
}

// errFull ends a scan.
var errFull = errors.New("topicletters: the answer is full")

// ScanLetters implements LetterService. The group is compared here and not by the scan, so
// that it is known how far that is when nothing fits.
func (s *Server) ScanLetters(
	ctx context.Context, req *linkv1.ScanLettersRequest,
) (*linkv1.ScanLettersResponse, error) {
	all, err := s.letters(ctx)
	if err != nil {
		return nil, err
	}
	sel := letterwire.Selection(req.GetSelection())
	group := sel.Group
	sel.Group = ""
	answer := &linkv1.ScanLettersResponse{}
	looked, size, until := 0, 0, time.Now().Add(maxTime)
	err = all.Scan(ctx, sel, letterwire.Place(req.GetFrom()), func(l letters.Letter) error {
		// One is looked at, however late it is: a call gets on.
		if len(answer.Letters) == maxLetters || size >= maxBytes || looked > 0 && time.Now().After(until) {
			answer.Next = letterwire.FromPlace(l.Place)
			return errFull
		}
		looked++
		if group == "" || group == l.Group {
			m := letterwire.FromLetter(l)
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
func (s *Server) CheckLetters(
	ctx context.Context, req *linkv1.CheckLettersRequest,
) (*linkv1.CheckLettersResponse, error) {
	all, err := s.letters(ctx)
	if err != nil {
		return nil, err
	}
	answer := &linkv1.CheckLettersResponse{}
	list := make([]letters.Letter, len(req.GetLetters()))
	for i, r := range req.GetLetters() {
		list[i] = letterwire.Ref(r)
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
func (s *Server) RedriveLetter(
	ctx context.Context, req *linkv1.RedriveLetterRequest,
) (*linkv1.RedriveLetterResponse, error) {
	gone, err := s.do(ctx, req.GetLetter(), (*letters.Letters).Redrive)
	return &linkv1.RedriveLetterResponse{Gone: gone}, err
}

// DiscardLetter implements LetterService.
func (s *Server) DiscardLetter(
	ctx context.Context, req *linkv1.DiscardLetterRequest,
) (*linkv1.DiscardLetterResponse, error) {
	gone, err := s.do(ctx, req.GetLetter(), (*letters.Letters).Discard)
	return &linkv1.DiscardLetterResponse{Gone: gone}, err
}

// do does something about the letter that stands in a place, if it is the one that is meant.
func (s *Server) do(
	ctx context.Context, ref *linkv1.LetterRef, what func(*letters.Letters, context.Context, letters.Letter) error,
) (gone bool, err error) {
	all, err := s.letters(ctx)
	if err != nil {
		return false, err
	}
	want := letterwire.Ref(ref)
	var found *letters.Letter
	err = all.Scan(ctx, letters.Select{Places: []letters.Place{want.Place}}, want.Place, func(l letters.Letter) error {
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
	if errors.Is(err, letters.ErrGone) {
		return true, nil
	}
	return false, err
}
