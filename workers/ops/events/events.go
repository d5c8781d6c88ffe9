// Package events serves the event store to operators: the RPCs of EventService over package
// eventquery.
//
// It owns what is between the wire and the reads. It does not own authentication, the
// audit, or the meaning of errors: package ops serves it in the chain of its own calls.
//
// Concurrency: a Server is safe for concurrent use.
package events

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/workers/eventquery"
	"github.com/parley-chat/parley/workers/ops/pagetoken"
	"github.com/parley-chat/parley/workers/ops/redact"
	"github.com/parley-chat/parley/workers/ops/withhold"
)

// Limits of a call.
const (
	defaultPage   = 100
	defaultRead   = 100_000
	maxPageBytes  = 1 << 20
	maxReason     = 1000
	progressEvery = time.Second
)

// Server has the handlers.
type Server struct {
	store store.Store
	clock func() time.Time
}

var _ opsv1connect.EventServiceHandler = (*Server)(nil)

// New makes a Server.
func New(st store.Store, clock func() time.Time) *Server { return &Server{st, clock} }

// The words of package outbox are the names of the API's enum in small letters.
const statusPrefix = "EVENT_STATUS_"

// Status is what a status of the API is called in package outbox.
func Status(s opsv1.EventStatus) outbox.Status {
	return outbox.Status(strings.ToLower(strings.TrimPrefix(s.String(), statusPrefix)))
}

func statusTo(s outbox.Status) opsv1.EventStatus {
	return opsv1.EventStatus(opsv1.EventStatus_value[statusPrefix+strings.ToUpper(string(s))])
}

// ListEvents implements opsv1connect.EventServiceHandler.
func (s *Server) ListEvents(
	ctx context.Context, req *opsv1.ListEventsRequest,
) (*opsv1.ListEventsResponse, error) {
	query := proto.CloneOf(req)
	query.PageSize, query.PageToken, query.MaxRead, query.Content = 0, "", 0, false
	after, err := pagetoken.Decode(req.GetPageToken(), query)
	if err != nil {
		return nil, err
	}
	f := eventquery.Filter{
		ChatID: req.GetChatId(), From: req.GetFromVersion(), To: req.GetToVersion(), Types: req.GetEventTypes(),
		After: timeOf(req.GetFromTime()), Until: timeOf(req.GetBeforeTime()), Actor: req.GetActorId(),
		Correlation: req.GetCorrelationId(), ID: req.GetEventId(),
	}
	for _, status := range req.GetStatuses() {
		f.Statuses = append(f.Statuses, Status(status))
	}
	page, err := eventquery.List(ctx, s.store, f, eventquery.Options{
		Limit: cmp.Or(int(req.GetPageSize()), defaultPage), MaxRead: cmp.Or(int(req.GetMaxRead()), defaultRead),
		MaxBytes: maxPageBytes, After: string(after), Standing: f.ChatID != "",
	})
	if err != nil {
		return nil, err
	}
	res := &opsv1.ListEventsResponse{Read: int64(page.Read)}
	for _, e := range page.Events {
		out, err := s.eventTo(ctx, e, req.GetContent())
		if err != nil {
			return nil, err
		}
		res.Events = append(res.Events, out)
	}
	if page.Next != "" {
		res.NextPageToken = pagetoken.Encode([]byte(page.Next), query)
	}
	return res, nil
}

// GetEvent implements opsv1connect.EventServiceHandler.
func (s *Server) GetEvent(ctx context.Context, req *opsv1.GetEventRequest) (*opsv1.GetEventResponse, error) {
	e, err := eventquery.Get(ctx, s.store, req.GetChatId(), req.GetVersion())
	if err != nil {
		return nil, err
	}
	out, err := s.eventTo(ctx, e, req.GetContent())
	if err != nil {
		return nil, err
	}
	return &opsv1.GetEventResponse{Event: out}, nil
}

// eventTo shows an event, with what users wrote only if content is set.
func (s *Server) eventTo(ctx context.Context, e eventquery.Found, content bool) (*opsv1.StoredEvent, error) {
	out := &opsv1.StoredEvent{
		ChatId: text(e.ChatID), Version: e.Version, EventId: text(e.ID), EventType: text(e.Type), Bytes: int64(e.Size),
		Status: statusTo(e.Standing.Status), Replay: e.Standing.Replay, Attempts: e.Standing.Attempts,
		LastError: text(e.Standing.LastError),
	}
	if e.Body == nil {
		out.Problem = text(e.Problem.Error())
		return out, nil
	}
	md := e.Body.GetMetadata()
	out.EventTime, out.ActorId = md.GetEventTime(), text(md.GetActorId())
	out.CorrelationId, out.CausationId = text(md.GetCorrelationId()), text(md.GetCausationId())
	content, err := withhold.Content(ctx, s.store, e.Body, content)
	if err != nil {
		return nil, err
	}
	if !content {
		redact.Message(e.Body.ProtoReflect())
	}
	body, err := protojson.Marshal(e.Body)
	if err != nil {
		return nil, fmt.Errorf("write event: %w", err)
	}
	out.EventJson = string(body)
	return out, nil
}

// FoldChat implements opsv1connect.EventServiceHandler.
func (s *Server) FoldChat(
	ctx context.Context, req *opsv1.FoldChatRequest, stream *connect.ServerStream[opsv1.FoldChatResponse],
) error {
	version := req.GetVersion()
	if req.GetAt() != nil {
		if version != 0 {
			return fmt.Errorf("%w: either a version or a time", eventquery.ErrInvalid)
		}
		var err error
		if version, err = eventquery.VersionAt(ctx, s.store, req.GetChatId(), req.GetAt().AsTime()); err != nil {
			return err
		}
	}
	send := func(res *opsv1.FoldChatResponse) error {
		if err := s.store.Durable(ctx); err != nil {
			return err
		}
		return stream.Send(res)
	}
	sent := s.clock()
	chat, problem, err := eventquery.Fold(ctx, s.store, req.GetChatId(), version, func(version int64) error {
		if s.clock().Sub(sent) < progressEvery {
			return nil
		}
		sent = s.clock()
		return send(&opsv1.FoldChatResponse{Version: version})
	})
	if err != nil {
		return err
	}
	res := &opsv1.FoldChatResponse{Version: chat.Head.Version, Chat: stateTo(chat)}
	if !req.GetContent() {
		redact.Message(res.GetChat().ProtoReflect())
	}
	if problem != nil {
		res.Problem = text(problem.Error())
	}
	return send(res)
}

// text bounds what stands in a row, and makes it valid UTF-8 for protobuf.
func text(s string) string {
	if len(s) > maxReason {
		s = s[:maxReason]
	}
	return strings.ToValidUTF8(s, "?")
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
