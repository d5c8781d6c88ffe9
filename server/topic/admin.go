package topic

import (
	"context"

	"github.com/parley-chat/parley/server/topic/internal/operations"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// Admin is what operators look after topics with.
func (s *Service) Admin() *operations.Admin { return s.operators }

// Jobs are what runs by itself, for metrics.
func (s *Service) Jobs() *operations.Jobs { return s.jobs }

func (s *Service) newAdmin() *operations.Admin {
	return operations.NewAdmin(operations.AdminConfig{
		Catalog: s.catalog, Reader: s.sources.Reader, Clock: s.cfg.Clock, Audit: s.cfg.Audit, Jobs: s.jobs,
		Open: s.topics.Open, Hold: s.topics.Hold, Stored: s.stored,
		Move: func(ctx context.Context, l *serving.OpenTopic, group string, tr storage.Transition, by string) error {
			_, err := s.subscriptions.Transition(ctx, l, group, tr, by)
			return err
		},
	})
}

// stored returns once what a group has changed in a topic is stored.
func (s *Service) stored(ctx context.Context, l *serving.OpenTopic, group string) error {
	return s.flusher.Wait(ctx, group, l.Parts...)
}
