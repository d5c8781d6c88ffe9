package delivery

// UserOf tells tests whose stream it is.
func UserOf(s *Stream) string { return s.owner.UserID }

// SetVerified records for tests that the streams of a chat's members are subscribed.
func (h *Hub) SetVerified(chatID string, version int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.setVerified(chatID, version)
}
