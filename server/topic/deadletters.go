package topic

import "github.com/parley-chat/parley/server/topic/internal/operations"

// DeadLetters finds the dead letters of all topics.
func (s *Service) DeadLetters() *DeadLetterStore { return operations.NewDeadLetterStore(s.engine) }
