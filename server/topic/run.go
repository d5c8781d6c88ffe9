package topic

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// Run does what is due until the context ends: it stores positions, detects dead groups,
// stores dead letters and trims. It ends with an error if another process has taken the
// topics over. All sessions end with it.
func (s *Service) Run(ctx context.Context, ready func()) error {
	ready()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	flushing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var others, flusher sync.WaitGroup
	others.Go(func() { s.jobs.Run(ctx) })
	others.Go(func() {
		select {
		case <-s.engine.Catalog.Lost():
			cancel(storage.ErrFenced)
		case <-ctx.Done():
		}
	})
	others.Go(func() { s.engine.Topics.Run(ctx) })
	others.Go(func() { s.engine.Sources.Run(ctx, s.engine.Topics.OfChats, s.engine.Topics.Hold) })
	others.Go(func() { s.engine.Backfills.Run(ctx) })
	others.Go(func() { s.engine.Sweep.Run(ctx) })
	others.Go(func() { s.push(ctx) })
	others.Go(func() {
		if err := s.engine.Sources.FollowLog(ctx, s.engine.Topics.Hold); err != nil {
			cancel(fmt.Errorf("%w: %w", storage.ErrFenced, err))
		}
	})
	var err error // why the flusher ended, once it has
	flusher.Go(func() {
		err = s.engine.Flusher.Run(flushing)
		cancel(err)
	})
	<-ctx.Done()
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	for _, o := range s.sessionsOf("") {
		if !o.pushes { // those that do end by themselves, after the requests that are under way
			o.End(serving.Draining)
		}
	}
	others.Wait()
	stop() // the last positions are stored once no goroutine changes them
	flusher.Wait()
	s.engine.ForgetGroups()
	if cause := context.Cause(ctx); errors.Is(cause, storage.ErrFenced) {
		return cause
	}
	if err != nil && !errors.Is(err, storage.ErrFenced) {
		s.cfg.Logger.Warn("the last positions of subscriptions are not stored: their messages come again", "error", err)
		return nil
	}
	return err
}

// pushDrain is how long requests to webhooks may go on that are under way when the service ends: the
// messages that they answer are still acknowledged, and no other process sends them again.
const pushDrain = callTime

// push sends messages to webhooks until stop ends.
func (s *Service) push(stop context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(stop))
	defer cancel()
	defer context.AfterFunc(stop, func() {
		if wait.For(ctx, pushDrain) == nil {
			cancel()
		}
	})()
	s.pushes.run(ctx, stop)
}
