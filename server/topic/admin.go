package topic

import (
	"context"

	"github.com/parley-chat/parley/server/topic/jobs"
	"github.com/parley-chat/parley/server/topic/lifecycle"
	"github.com/parley-chat/parley/server/topic/live"
	"github.com/parley-chat/parley/server/topic/operate"
)

// Admin is what operators look after topics with.
func (s *Service) Admin() *operate.Admin { return s.operators }

// Jobs are what runs by itself, for metrics.
func (s *Service) Jobs() *jobs.Jobs { return s.jobs }

func (s *Service) newAdmin() *operate.Admin {
	return operate.New(operate.Config{
		Catalog: s.catalog, Reader: s.sources.Reader, Clock: s.cfg.Clock, Audit: s.cfg.Audit, Jobs: s.jobs,
		Open: s.topics.Open, Hold: s.topics.Hold, Stored: s.stored,
		Move: func(ctx context.Context, l *live.Topic, group string, tr lifecycle.Transition, by string) error {
			_, err := s.subscriptions.Transition(ctx, l, group, tr, by)
			return err
		},
	})
}

// stored returns once what a group has changed in a topic is stored.
func (s *Service) stored(ctx context.Context, l *live.Topic, group string) error {
	return s.flusher.Wait(ctx, group, l.Parts...)
}
