// Package searchapi serves the RPCs of parley.analytics.v1 over package record.
//
// It owns what is between the wire and the use case: the handlers, the limits of requests,
// and its part of the table of errors. The caller is known and the request is valid when
// the package is called (package api). Concurrency: a Server is safe for concurrent use.
package searchapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	analyticsv1 "github.com/parley-chat/parley/gen/parley/analytics/v1"
	"github.com/parley-chat/parley/gen/parley/analytics/v1/analyticsv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/search/record"
)

// MaxBatch bounds a request of BatchProcedure, in bytes.
const MaxBatch = 1 << 20

// BatchProcedure is the procedure that takes MaxBatch.
const BatchProcedure = analyticsv1connect.AnalyticsServiceRecordBatchProcedure

// Server has the handlers.
type Server struct{ events *record.Recorder }

var _ analyticsv1connect.AnalyticsServiceHandler = (*Server)(nil)

// New makes a Server.
func New(events *record.Recorder) *Server { return &Server{events} }

// Service is the service, for package api.
func (s *Server) Service() api.Service {
	return api.Service{Name: analyticsv1connect.AnalyticsServiceName, Explain: explain,
		Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			o = append(o, connect.WithConditionalHandlerOptions(func(s connect.Spec) []connect.HandlerOption {
				if s.Procedure != BatchProcedure {
					return nil
				}
				return []connect.HandlerOption{connect.WithReadMaxBytes(MaxBatch)}
			}))
			return analyticsv1connect.NewAnalyticsServiceHandler(s, o...)
		}}
}

// Record implements AnalyticsService.
func (s *Server) Record(ctx context.Context, req *analyticsv1.RecordRequest) (*analyticsv1.RecordResponse, error) {
	ids, err := s.record(ctx, []*analyticsv1.SearchEvent{req.GetEvent()})
	if err != nil {
		return nil, err
	}
	return &analyticsv1.RecordResponse{EventId: ids[0]}, nil
}

// RecordBatch implements AnalyticsService.
func (s *Server) RecordBatch(
	ctx context.Context, req *analyticsv1.RecordBatchRequest,
) (*analyticsv1.RecordBatchResponse, error) {
	ids, err := s.record(ctx, req.GetEvents())
	if err != nil {
		return nil, err
	}
	return &analyticsv1.RecordBatchResponse{EventIds: ids}, nil
}

// record records events of the caller.
func (s *Server) record(ctx context.Context, list []*analyticsv1.SearchEvent) ([]string, error) {
	user, _ := auth.PrincipalFrom(ctx) // there is one: the chain asks for it
	events := make([]search.Event, len(list))
	for i, e := range list {
		content := contentOf(e)
		if of := content.GetUserId(); of != "" && of != user.UserID {
			return nil, errUser
		}
		events[i] = search.Event{ClientID: e.GetClientEventId(), Content: content}
		if at := e.GetOccurredAt(); at != nil {
			events[i].OccurredAt = at.AsTime()
		}
	}
	return s.events.Record(ctx, user.UserID, events)
}

// contentOf is the content of an event, which has one: requests are validated.
func contentOf(e *analyticsv1.SearchEvent) search.Content {
	switch of := e.GetEvent().(type) {
	case *analyticsv1.SearchEvent_SearchImpression:
		return of.SearchImpression
	case *analyticsv1.SearchEvent_SearchResultSummary:
		return of.SearchResultSummary
	case *analyticsv1.SearchEvent_SearchClick:
		return of.SearchClick
	case *analyticsv1.SearchEvent_SearchDwell:
		return of.SearchDwell
	case *analyticsv1.SearchEvent_AcImpression:
		return of.AcImpression
	default:
		return e.GetAcSelect()
	}
}

// errUser reports that an event names another user.
var errUser = errors.New("searchapi: user_id is the caller's, and may be left out")

// table is what clients see of errors.
var table = []struct {
	is error
	api.Refusal
}{
	{record.ErrBusy, api.Refusal{Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
		Text: "this user has too many requests under way: wait for their answers", Retry: time.Second}},
	{record.ErrLogFull, api.Refusal{Code: connect.CodeResourceExhausted, Reason: "SEARCH_LOG_FULL",
		Text: "the event log has no room for search events: send them again later", Retry: 30 * time.Second}},
	{record.ErrTooLarge, api.Refusal{Code: connect.CodeResourceExhausted, Reason: "TOO_LARGE"}},
	{record.ErrTime, api.Refusal{Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"}},
	{errUser, api.Refusal{Code: connect.CodePermissionDenied, Reason: "FORBIDDEN"}},
}

// Reasons are all refusals of recording, for the documents. A text is empty where it depends on
// the request.
func Reasons() []api.Refusal {
	all := make([]api.Refusal, len(table))
	for i, row := range table {
		all[i] = row.Refusal
	}
	return all
}

// explain says what clients see of the errors of recording.
func explain(err error) *api.Refusal {
	for _, row := range table {
		if !errors.Is(err, row.is) {
			continue
		}
		refused := row.Refusal
		if refused.Text == "" {
			_, refused.Text, _ = strings.Cut(err.Error(), ": ")
		}
		return &refused
	}
	return nil
}
