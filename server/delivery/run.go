package delivery

import (
	"context"
	"time"
)

// workers is the number of goroutines that read for a hub.
const workers = 4

// Run performs the hub's work and ends streams whose time is over, until ctx
// ends.
func (h *Hub) Run(ctx context.Context, ready func()) error {
	ready()
	runWork(ctx, workers, workMachine[Work]{
		Next:   func() (Work, time.Duration, bool) { return h.Work(h.cfg.Clock()) },
		Do:     h.Do,
		Failed: func(err error) { h.cfg.Logger.Warn("delivery: read failed, will be repeated", "error", err) },
		Wake:   h.wake,
		Signal: h.signal,
		Tick:   h.Tick,
	})
	return nil
}
