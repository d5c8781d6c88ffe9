package chat

// WaitFor returns when n commands are waiting for a chat.
func (s *Service) WaitFor(chatID string, n int) { s.waitFor(chatID, n) }
