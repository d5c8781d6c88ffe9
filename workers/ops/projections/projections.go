// Package projections serves operators the projections: the RPCs of parley.ops.v1's
// ProjectionService over package projection.
//
// It owns what is between the wire and the projections. It does not own authentication, the
// audit, or the table of errors: package ops serves it in its own chain.
//
// Concurrency: a Service is safe for concurrent use.
package projections

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/projection/chatactivity"
	"github.com/parley-chat/parley/workers/projection/notifications"
)

// Config is what a Service works with; all of it is required.
type Config struct {
	Store   store.Store
	Operate *projection.Operate
	Clock   func() time.Time
	// Operator returns the name of the caller.
	Operator func(ctx context.Context) string
}

// Service has the handlers.
type Service struct{ cfg Config }

var _ opsv1connect.ProjectionServiceHandler = (*Service)(nil)

// New makes a Service.
func New(cfg Config) *Service { return &Service{cfg} }

// Handler is the service, for package ops.
func (s *Service) Handler(o ...connect.HandlerOption) (string, http.Handler) {
	return opsv1connect.NewProjectionServiceHandler(s, o...)
}

// ListProjections implements opsv1connect.ProjectionServiceHandler.
func (s *Service) ListProjections(
	ctx context.Context, _ *opsv1.ListProjectionsRequest,
) (*opsv1.ListProjectionsResponse, error) {
	list, err := s.cfg.Operate.List(ctx)
	if err != nil {
		return nil, err
	}
	res := &opsv1.ListProjectionsResponse{}
	for _, p := range list {
		res.Projections = append(res.Projections, projectionTo(p))
	}
	return res, nil
}

// actions has the actions of requests that passed validation.
var actions = map[opsv1.RebuildAction]projection.Action{
	opsv1.RebuildAction_REBUILD_ACTION_START:  projection.Start,
	opsv1.RebuildAction_REBUILD_ACTION_PAUSE:  projection.Pause,
	opsv1.RebuildAction_REBUILD_ACTION_RESUME: projection.Resume,
	opsv1.RebuildAction_REBUILD_ACTION_CANCEL: projection.Cancel,
}

// ChangeRebuild implements opsv1connect.ProjectionServiceHandler.
func (s *Service) ChangeRebuild(
	ctx context.Context, req *opsv1.ChangeRebuildRequest,
) (*opsv1.ChangeRebuildResponse, error) {
	change := projection.Change{Action: actions[req.GetAction()], AcceptGaps: req.GetAcceptGaps()}
	p, err := s.cfg.Operate.Do(ctx, req.GetName(), change, s.cfg.Operator(ctx), req.GetExecute())
	if err != nil {
		return nil, err
	}
	return &opsv1.ChangeRebuildResponse{Projection: projectionTo(p)}, nil
}

func projectionTo(s projection.Status) *opsv1.Projection {
	b, r := s.Builds, s.Rebuild
	out := &opsv1.Projection{
		Name: s.Name, About: s.About, Version: s.Version, LiveBuild: b.Live, LiveVersion: b.LiveVersion,
		ChangedAt: millis(b.ChangedAt), ChangedBy: b.By, DroppedBuilds: int32(len(b.Dropped)),
	}
	rebuild := &opsv1.ProjectionRebuild{
		Build: r.Build, TotalEvents: r.Total, DoneEvents: r.Done, StuckChats: r.Stuck, Process: r.Holder,
		BeganAt: millis(r.BeganAt), EndedAt: millis(r.EndedAt), Blocked: r.Blocked, Gaps: strings.Fields(r.Gaps),
	}
	switch {
	case b.Next != 0 && r.Build == b.Next:
		out.Rebuild = rebuild
	case b.Next != 0: // no process has looked yet
		out.Rebuild = &opsv1.ProjectionRebuild{Build: b.Next}
	case r.EndedAt != 0:
		out.LastRebuild = rebuild
	}
	if out.Rebuild != nil {
		out.Rebuild.Version, out.Rebuild.Paused = b.NextVersion, b.Paused
	}
	if out.LastRebuild != nil {
		out.LastRebuild.Version = b.LiveVersion
	}
	return out
}

// millis is a time in unix ms, nil for 0.
func millis(at int64) *timestamppb.Timestamp {
	if at == 0 {
		return nil
	}
	return timestamppb.New(time.UnixMilli(at))
}

// defaultPage is the size of a page of which none is asked for.
const defaultPage = 100

// statusPrefix begins the names of the API's statuses; the rest are the words of package
// deadletter in capitals.
const statusPrefix = "DEAD_LETTER_STATUS_"

// ListNotifications implements opsv1connect.ProjectionServiceHandler.
func (s *Service) ListNotifications(
	ctx context.Context, req *opsv1.ListNotificationsRequest,
) (*opsv1.ListNotificationsResponse, error) {
	f := notifications.Filter{ChatID: req.GetChatId(), UserID: req.GetUserId(), Group: req.GetGroup(),
		EventID: req.GetEventId()}
	for _, status := range req.GetStatuses() {
		f.Statuses = append(f.Statuses, deadletter.Status(strings.ToLower(strings.TrimPrefix(status.String(), statusPrefix))))
	}
	if t := req.GetFailedFrom(); t != nil {
		f.After = t.AsTime()
	}
	if t := req.GetFailedBefore(); t != nil {
		f.Before = t.AsTime()
	}
	size := cmp.Or(int(req.GetPageSize()), defaultPage)
	list, next, err := notifications.List(ctx, s.cfg.Store, s.cfg.Clock(), f, size, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	res := &opsv1.ListNotificationsResponse{NextPageToken: next}
	for _, n := range list {
		res.Notifications = append(res.Notifications, notificationTo(n))
	}
	return res, nil
}

func notificationTo(n notifications.Notification) *opsv1.Notification {
	return &opsv1.Notification{
		LetterId: valid(n.DeadLetterID), Group: valid(n.Group), Reason: valid(n.Reason),
		FailureClass: failureClass(n.Notification), FailedAt: millis(n.FailedAt), Attempts: int32(n.Attempts),
		EventId: n.EventID, EventType: n.EventType, ChatId: n.ChatID, Version: n.Version, UserId: n.Actor,
		EventTime: millis(n.EventTime),
		Status:    opsv1.DeadLetterStatus(opsv1.DeadLetterStatus_value[statusPrefix+strings.ToUpper(string(n.Status))]),
		HandledBy: valid(n.Handling.By), HandledAt: millis(n.Handling.At), Result: valid(n.Handling.Result),
		Redrives: int32(n.Handling.Tries),
	}
}

// failureClass is the class of a dead letter in the words of the API, which has the same
// numbers.
func failureClass(n table.Notification) opsv1.FailureClass {
	if _, ok := opsv1.FailureClass_name[int32(n.Class)]; !ok {
		return opsv1.FailureClass_FAILURE_CLASS_UNSPECIFIED
	}
	return opsv1.FailureClass(n.Class)
}

// valid makes a text that others wrote to Kafka valid for protobuf.
func valid(s string) string { return strings.ToValidUTF8(s, "?") }

// defaultDays is how many days before the last one are shown if none is asked for.
const defaultDays = 30

// GetChatActivity implements opsv1connect.ProjectionServiceHandler.
func (s *Service) GetChatActivity(
	ctx context.Context, req *opsv1.GetChatActivityRequest,
) (*opsv1.GetChatActivityResponse, error) {
	to, err := dayOf(req.GetToDay(), s.cfg.Clock().UTC())
	if err != nil {
		return nil, err
	}
	from, err := dayOf(req.GetFromDay(), to.AddDate(0, 0, -defaultDays))
	if err != nil {
		return nil, err
	}
	days, err := chatactivity.Days(ctx, s.cfg.Store, req.GetChatId(), from, to)
	if err != nil {
		return nil, err
	}
	res := &opsv1.GetChatActivityResponse{}
	for _, d := range days {
		res.Days = append(res.Days, &opsv1.ChatActivityDay{Day: d.Date, Messages: d.Messages, Senders: d.Senders})
	}
	if !req.GetSenders() {
		return res, nil
	}
	senders, err := chatactivity.Senders(ctx, s.cfg.Store, req.GetChatId(), to)
	if err != nil {
		return nil, err
	}
	for _, u := range senders {
		res.Senders = append(res.Senders, &opsv1.ChatActivitySender{UserId: u.UserID, Messages: u.Messages})
	}
	return res, nil
}

// dayOf reads a day.
func dayOf(text string, otherwise time.Time) (time.Time, error) {
	if text == "" {
		return otherwise, nil
	}
	day, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return day, fmt.Errorf("%w: %.20q is no day", chatactivity.ErrInvalid, text)
	}
	return day, nil
}
