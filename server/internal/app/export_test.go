package app

import (
	"context"

	"github.com/parley-chat/parley/server/backend/clock"
)

// WithClocks sets the clocks of the servers that Run starts with the context.
func WithClocks(ctx context.Context, c clock.Clocks) context.Context {
	return context.WithValue(ctx, clocksKey{}, c)
}
