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

// The clients of Kafka and of the store repeat their requests for minutes. The goroutine
// that publishes waits for them, and can neither count nor measure meanwhile: the monitor
// does so beside it.

const (
	// slowAfter is how long an attempt to publish may take. For each such time without
	// success it counts as a failure, though it is still under way.
	slowAfter = 10 * time.Second
	// monitorEvery is how often the monitor looks.
	monitorEvery = time.Second
	// slowLogEvery is how often an attempt that does not end is logged.
	slowLogEvery = 6 * slowAfter
)

// monitor is what the monitor knows of the publishing goroutine.
type monitor struct {
	mu       sync.Mutex
	began    time.Time       // of the attempt that is under way; zero: none is
	records  []*kafka.Record // of the attempt; none if it takes the transactional id over
	counted  int             // failures that the attempt has counted as
	sweeps   int
	measured time.Time // when the backlog was last counted, by a sweep or by the monitor
}

// countedError is the error of an attempt that has counted as a failure already.
type countedError struct{ error }

func (e countedError) Unwrap() error { return e.error }

// attempt does something that the brokers answer to, under the eyes of the monitor.
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

// watch counts attempts that do not end, and the backlog while no sweep does, until ctx
// ends.
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
			if err := r.measure(ctx, sweeps); err != nil && ctx.Err() == nil {
				r.cfg.Logger.Warn("relay: cannot count the rows of the outbox", "error", err)
			}
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
		why := fmt.Errorf("no success after %v; the attempt is still under way", time.Since(m.began).Round(time.Second))
		if len(types) > 0 {
			r.cfg.Logger.Error("lifecycle_event_publish_failed", "events", types, "error", why)
		} else {
			r.cfg.Logger.Warn("relay: cannot renew its transactional id; publishes nothing until it has", "error", why)
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

// due reports whether no one has counted the backlog for slowAfter.
func (m *monitor) due() (sweeps int, due bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sweeps, time.Since(m.measured) >= slowAfter
}

// measure counts the rows in the outbox and finds the oldest. Rows that are published and
// not deleted are among them. A sweep that ends meanwhile knows better.
func (r *Relay) measure(ctx context.Context, sweeps int) error {
	ctx, cancel := context.WithTimeout(ctx, slowAfter)
	defer cancel()
	rows, oldest := int64(0), int64(0)
	for shard, mine := range r.mine {
		if !mine {
			continue
		}
		q := store.Query{Table: store.Outbox, PK: table.ShardKey(shard)}
		for first := true; first || q.Cursor != ""; first = false {
			page, err := r.cfg.Store.Query(ctx, q)
			if err != nil {
				return fmt.Errorf("read outbox: %w", err)
			}
			for _, row := range page.Rows {
				rows++
				if o, err := table.OutboxFrom(row); err == nil && (oldest == 0 || o.CreatedAt < oldest) {
					oldest = o.CreatedAt
				}
			}
			q.Cursor = page.Cursor
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
