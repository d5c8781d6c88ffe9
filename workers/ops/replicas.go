package ops

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/versions"
)

// replicasEvery is how often a Replicas counts.
const replicasEvery = 30 * time.Second

// Replicas counts the partitions that miss replicas, for the metrics: such a partition loses
// records with the next broker.
type Replicas struct {
	service *Service
	under   atomic.Int64
}

// Replicas makes a Replicas.
func (s *Service) Replicas() *Replicas { return &Replicas{service: s} }

// Under is the last count; it may be called from any goroutine.
func (r *Replicas) Under() int64 { return r.under.Load() }

// Run counts until ctx ends. While the cluster does not answer, the count stays: other
// metrics show that it is unavailable.
func (r *Replicas) Run(ctx context.Context, ready func()) error {
	ready()
	t := time.NewTicker(replicasEvery)
	defer t.Stop()
	for {
		if err := r.count(ctx); err != nil && ctx.Err() == nil {
			r.service.cfg.Logger.Warn("ops: replicas cannot be counted", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (r *Replicas) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	state, err := versions.Load(ctx, r.service.cfg.Store)
	if err != nil {
		return err
	}
	n, err := lag.UnderReplicated(ctx, r.service.cfg.Addr, state.Required(), r.service.cfg.Kafka...)
	if err == nil {
		r.under.Store(int64(n))
	}
	return err
}
