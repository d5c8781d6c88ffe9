package backend

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// How often the store is pinged, and how long an answer may take: an outage is noticed 3 s
// after the last answer at the latest.
const (
	pingEvery   = time.Second
	pingTime    = 2 * time.Second
	reportEvery = time.Minute
)

// ping asks the store for an answer.
func (e *Backend) ping(ctx context.Context) error {
	_, err := e.Store.Get(ctx, store.Key{Table: store.Meta, PK: "generation"}, store.Eventual)
	if errors.Is(err, store.ErrThrottled) && !errors.Is(err, context.DeadlineExceeded) {
		return nil // that is an answer
	}
	return err
}

// watchStore says in one line when the store stops answering, once a minute while it does
// not, and when it answers again, until ctx ends. The embedded store is in this process
// and is not pinged.
func watchStore(ctx context.Context, log *slog.Logger, ping func(context.Context) error) {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	var since, reported time.Time
	for {
		call, cancel := context.WithTimeout(ctx, pingTime)
		err := ping(call)
		cancel()
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && !since.IsZero():
			log.Info("DynamoDB answers again", "away", now.Sub(since).Round(time.Second))
			since = time.Time{}
		case err != nil:
			if since.IsZero() {
				since = now
			} else if now.Sub(reported) < reportEvery {
				break
			}
			reported = now
			log.Error("DynamoDB does not answer; requests that need it fail until it does", "away",
				now.Sub(since).Round(time.Second), "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
