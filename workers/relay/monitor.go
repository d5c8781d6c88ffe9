package relay

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// The clients of Kafka and of the store retry for minutes. Meanwhile the goroutine that
// publishes can neither count failures nor rows. The monitor does so in the background.

const (
	// slowAfter is how long an attempt to publish may take. It counts as a failure for each
	// such period without success, though the client is still trying.
	slowAfter = 10 * time.Second
	// monitorEvery is the period of the monitor.
	monitorEvery = time.Second
	// slowLogEvery is the period in which a slow attempt is logged again.
	slowLogEvery = 6 * slowAfter
)

// monitor is what the publishing goroutine shares with the monitor.
type monitor struct {
	mu       sync.Mutex
	began    time.Time       // start of the present attempt; zero: there is none
	records  []*kafka.Record // of the attempt; none in a renewal
	counted  int             // failures counted for the attempt
	sweeps   int
	measured time.Time // last count of the backlog, by a sweep or by the monitor
	next     time.Time // the monitor's next count is not before
}

// countedError is the error of an attempt that the monitor has already counted.
type countedError struct{ error }

func (e countedError) Unwrap() error { return e.error }

// attempt calls the brokers while the monitor watches.
func (r *Relay) attempt(records []*kafka.Record, do func() error) error {
	m := &r.monitor
	m.mu.Lock()
	m.records, m.began, m.counted = records, time.Now(), 0
	m.mu.Unlock()
	err := do()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records, m.began = nil, time.Time{}
	if err != nil && m.counted > 0 {
		return countedError{err}
	}
	return err
}

// watch counts slow attempts, and the backlog while no sweep ends, until ctx ends.
func (r *Relay) watch(ctx context.Context) {
	t := time.NewTicker(monitorEvery)
	defer t.Stop()
	r.monitor.swept()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		r.countSlow()
		if sweeps, due := r.monitor.due(); due {
			began := time.Now()
			if err := r.measure(ctx, sweeps); err != nil && ctx.Err() == nil {
				r.cfg.Logger.Warn("relay: cannot count the rows of the outbox", "error", err)
			}
			// A long outbox is read beside the sweep for a tenth of the time at most.
			r.monitor.pause(max(slowAfter, 9*time.Since(began)))
		}
	}
}

// countSlow counts an attempt as a failure for each slowAfter that it has taken.
func (r *Relay) countSlow() {
	m := &r.monitor
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.began.IsZero() || time.Since(m.began) < time.Duration(m.counted+1)*slowAfter {
		return
	}
	r.failures.Add(1)
	types := r.countFailed(m.records)
	if time.Duration(m.counted)*slowAfter%slowLogEvery == 0 {
		why := fmt.Errorf("no success after %v; still trying", time.Since(m.began).Round(time.Second))
		if len(types) > 0 {
			r.cfg.Logger.Error("lifecycle_event_publish_failed", "events", types, "error", why)
		} else {
			r.cfg.Logger.Warn("relay: cannot renew the transactional id; publishing nothing until then", "error", why)
		}
	}
	m.counted++
}

// swept records that a sweep has counted the backlog.
func (m *monitor) swept() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweeps++
	m.measured = time.Now()
}

// due reports whether the backlog was not counted for slowAfter.
func (m *monitor) due() (sweeps int, due bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sweeps, time.Since(m.measured) >= slowAfter && !time.Now().Before(m.next)
}

// pause has the next count wait, whether or not the last one succeeded.
func (m *monitor) pause(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = time.Now().Add(d)
}

// measure counts the rows in the outbox and finds the oldest, including rows that are
// published and not yet deleted. The result of a sweep that ends meanwhile is better.
func (r *Relay) measure(ctx context.Context, sweeps int) error {
	ctx, cancel := context.WithTimeout(ctx, slowAfter)
	defer cancel()
	rows, oldest := int64(0), int64(0)
	for shard, mine := range r.assigned {
		if !mine {
			continue
		}
		q := store.Query{Table: store.Outbox, PK: table.ShardKey(shard)}
		for row, err := range store.QueryAll(ctx, r.cfg.Store, q) {
			if err != nil {
				return fmt.Errorf("read outbox: %w", err)
			}
			rows++
			if o, err := table.OutboxFrom(row); err == nil && (oldest == 0 || o.CreatedAt < oldest) {
				oldest = o.CreatedAt
			}
		}
	}
	m := &r.monitor
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sweeps == sweeps {
		m.measured = time.Now()
		r.backlog.Store(rows)
		r.oldest.Store(oldest)
	}
	return nil
}
