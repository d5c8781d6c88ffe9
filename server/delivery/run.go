package delivery

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// workers is the number of goroutines that read for a hub.
const workers = 4

// Run performs the hub's work and ends streams whose time is over, until ctx
// ends.
func (h *Hub) Run(ctx context.Context, log *slog.Logger) error {
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { h.work(ctx, log) })
	}
	wg.Go(func() {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				h.Tick()
			}
		}
	})
	wg.Wait()
	return nil
}

func (h *Hub) work(ctx context.Context, log *slog.Logger) {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for ctx.Err() == nil {
		w, wait, ok := h.Work(h.cfg.Clock())
		if ok {
			h.signal() // there may be more, for another worker
			if err := h.Do(ctx, w); err != nil && ctx.Err() == nil {
				log.Warn("delivery: read failed, will be repeated", "error", err)
			}
			continue
		}
		if wait <= 0 {
			wait = time.Hour
		}
		t.Reset(wait)
		select {
		case <-ctx.Done():
		case <-h.wake:
		case <-t.C:
		}
	}
}
