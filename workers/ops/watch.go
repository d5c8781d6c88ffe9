package ops

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/kafka/inspect"
	"github.com/parley-chat/parley/server/kafka/versions"
)

// replicasEvery is how often a Replicas looks.
const replicasEvery = 30 * time.Second

// Replicas keeps count of partitions that miss replicas, for the metrics (K-166).
type Replicas struct {
	service *Service
	under   atomic.Int64
}

// Replicas makes a Replicas.
func (s *Service) Replicas() *Replicas { return &Replicas{service: s} }

// Under is what the last look has found; it may be called by anybody.
func (r *Replicas) Under() int64 { return r.under.Load() }

// Run looks until ctx ends. While the cluster does not answer, the count stays: that it
// is away shows elsewhere.
func (r *Replicas) Run(ctx context.Context) error {
	t := time.NewTicker(replicasEvery)
	defer t.Stop()
	for {
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			r.service.cfg.Logger.Warn("ops: replicas cannot be counted", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

func (r *Replicas) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	state, err := versions.Load(ctx, r.service.cfg.Store)
	if err != nil {
		return err
	}
	n, err := inspect.UnderReplicated(ctx, r.service.cfg.Addr, state.Required(), r.service.cfg.Kafka...)
	if err == nil {
		r.under.Store(int64(n))
	}
	return err
}
