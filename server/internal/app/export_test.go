package app

import "github.com/parley-chat/parley/server/backend/clock"

// SetClocks sets the clocks of servers that start from now on, and returns how to set
// them back.
func SetClocks(c clock.Clocks) (back func()) {
	was := clocks
	clocks = c
	return func() { clocks = was }
}
