package topic

import (
	"github.com/parley-chat/parley/server/topic/internal/operations"
)

// Admin is what operators look after topics with.
func (s *Service) Admin() *operations.Admin { return s.operators }

// Jobs are what runs by itself, for metrics.
func (s *Service) Jobs() *operations.Jobs { return s.jobs }
