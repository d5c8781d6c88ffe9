package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"

	analyticsv1 "github.com/parley-chat/parley/gen/parley/analytics/v1"
	"github.com/parley-chat/parley/gen/parley/analytics/v1/analyticsv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/rpc"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/search/record"
)

// MaxAnalyticsBatch bounds a request of BatchProcedure, in bytes.
const MaxAnalyticsBatch = 1 << 20

// BatchProcedure is the procedure that takes MaxAnalyticsBatch.
const BatchProcedure = analyticsv1connect.AnalyticsServiceRecordBatchProcedure

// AnalyticsServer has the RPCs of parley.analytics.v1, over package record. It is safe for concurrent use.
type AnalyticsServer struct{ events *record.Recorder }

var _ analyticsv1connect.AnalyticsServiceHandler = (*AnalyticsServer)(nil)

// NewAnalytics makes an AnalyticsServer.
func NewAnalytics(events *record.Recorder) *AnalyticsServer { return &AnalyticsServer{events} }

// Service is the service, for New.
func (s *AnalyticsServer) Service() Service {
	return Service{Name: analyticsv1connect.AnalyticsServiceName, Explain: AnalyticsRefusals.Explain,
		Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			o = append(o, connect.WithConditionalHandlerOptions(func(s connect.Spec) []connect.HandlerOption {
				if s.Procedure != BatchProcedure {
					return nil
				}
				return []connect.HandlerOption{connect.WithReadMaxBytes(MaxAnalyticsBatch)}
			}))
			return analyticsv1connect.NewAnalyticsServiceHandler(s, o...)
		}}
}

// Record implements AnalyticsService.
func (s *AnalyticsServer) Record(
	ctx context.Context, req *analyticsv1.RecordRequest,
) (*analyticsv1.RecordResponse, error) {
	ids, err := s.record(ctx, []*analyticsv1.SearchEvent{req.GetEvent()})
	if err != nil {
		return nil, err
	}
	return &analyticsv1.RecordResponse{EventId: ids[0]}, nil
}

// RecordBatch implements AnalyticsService.
func (s *AnalyticsServer) RecordBatch(
	ctx context.Context, req *analyticsv1.RecordBatchRequest,
) (*analyticsv1.RecordBatchResponse, error) {
	ids, err := s.record(ctx, req.GetEvents())
	if err != nil {
		return nil, err
	}
	return &analyticsv1.RecordBatchResponse{EventIds: ids}, nil
}

// record records events of the caller.
func (s *AnalyticsServer) record(ctx context.Context, list []*analyticsv1.SearchEvent) ([]string, error) {
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
var errUser = errors.New("analytics: user_id is the caller's, and may be left out")

// AnalyticsRefusals is the service's table of errors.
var AnalyticsRefusals = rpc.Refusals{
	{Is: record.ErrBusy, Code: connect.CodeResourceExhausted, Reason: "RATE_LIMITED",
		Text: "this user has too many requests under way: wait for their answers", Retry: time.Second},
	{Is: record.ErrLogFull, Code: connect.CodeResourceExhausted, Reason: "SEARCH_LOG_FULL",
		Text: "the event log has no room for search events: send them again later", Retry: 30 * time.Second},
	{Is: record.ErrTooLarge, Code: connect.CodeResourceExhausted, Reason: "TOO_LARGE"},
	{Is: record.ErrTime, Code: connect.CodeInvalidArgument, Reason: "INVALID_ARGUMENT"},
	{Is: errUser, Code: connect.CodePermissionDenied, Reason: "FORBIDDEN"},
}
