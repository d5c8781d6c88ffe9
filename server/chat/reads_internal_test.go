package chat

// WaitingReads is the number of a member's read positions that wait behind one that is
// being written.
func WaitingReads(s *Service, user, chatID string) int { return s.reads.Waiting(user + "#" + chatID) }
