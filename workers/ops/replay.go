package ops

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/workers/ops/events"
	"github.com/parley-chat/parley/workers/replay"
)

// ReplayEvents implements opsv1connect.OpsServiceHandler.
func (s *Service) ReplayEvents(
	ctx context.Context, req *opsv1.ReplayEventsRequest, stream *connect.ServerStream[opsv1.ReplayEventsResponse],
) error {
	if (len(req.GetChatIds()) == 0) != req.GetAllChats() {
		return fmt.Errorf("%w: either chat_ids or all_chats is required", errArgument)
	}
	var report replay.Report
	send := func(done bool) error {
		if err := s.cfg.Store.Durable(ctx); err != nil {
			return err
		}
		return stream.Send(&opsv1.ReplayEventsResponse{
			Chats: int64(report.Chats), Events: int64(report.Events), Unpublished: int64(report.Unpublished), More: report.More,
			Done: done, Resume: report.Resume, Lost: int64(report.Lost),
		})
	}
	lastSent := s.cfg.Clock()
	filter := replay.Filter{
		Chats: req.GetChatIds(), From: req.GetFromVersion(), To: req.GetToVersion(), Types: req.GetEventTypes(),
		After: timeOf(req.GetFromTime()), Until: timeOf(req.GetBeforeTime()),
	}
	for _, status := range req.GetStatuses() {
		filter.Statuses = append(filter.Statuses, events.Status(status))
	}
	report, err := replay.Run(ctx, s.cfg.Store, s.cfg.Clock, filter, replay.Options{
		DryRun: !req.GetExecute(), Limit: int(req.GetLimit()), Rate: int(req.GetRate()), Resume: req.GetResume(),
		OnProgress: func(r replay.Report) error {
			if s.cfg.Clock().Sub(lastSent) < progressEvery {
				return nil
			}
			report, lastSent = r, s.cfg.Clock()
			return send(false)
		},
	})
	if err != nil {
		if report.Events > 0 {
			_ = send(false) // the events are published; err is the error that counts
		}
		return err
	}
	return send(true)
}
