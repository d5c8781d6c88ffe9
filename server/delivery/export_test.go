package delivery

// UserOf tells tests whose stream it is.
func UserOf(s *Stream) string { return s.user }
