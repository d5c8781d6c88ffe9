package routing

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

// LeaseConfig configures a Lease. Zero durations take the defaults.
type LeaseConfig struct {
	Table  Table
	Server Server // without an epoch; without an address if no process sends to it
	// Lost is called when streams may have missed something: rows were missing and have
	// been restored, or no renewal has succeeded for as long as a lease lasts.
	Lost   func()
	Clock  func() time.Time
	Logger *slog.Logger

	TTL    time.Duration // of the lease, renewed three times in it; 9 s
	RowTTL time.Duration // of rows, which are put again every 16 renewals; 5 min
	Linger time.Duration // how long a row outlives its last stream; 10 s

	// Patience is how long Run claims the first lease again while the table is unavailable;
	// negative: until its context ends.
	Patience time.Duration
}

// buckets is the number of parts in which rows are put again, one with each renewal.
const buckets = 16

// batch is the number of rows put or removed at a time.
const batch = 500

// Lease keeps the rows of one process. Its methods may be called by many goroutines,
// Run by one.
type Lease struct {
	cfg  LeaseConfig
	seed maphash.Seed

	// removing is locked while rows are removed, and shared while rows are put, so that
	// a removal cannot follow the put of the same row.
	removing sync.RWMutex

	mu         sync.Mutex
	server     Server // with the current epoch
	complete   bool   // the current lease was claimed and has all rows
	rows       [buckets]map[string]*row
	nextBucket int       // to be put with the next renewal
	renewed    time.Time // start of the last successful renewal
	stats      LeaseStats

	// missed counts rows that were missing and of which Lost does not know yet, because not
	// all rows could be put. Only Renew uses it.
	missed int
}

// row is the state of one user's row.
type row struct {
	streams int
	idle    time.Time // since when there is no stream
	acked   uint64    // epoch in which the row was acknowledged; 0: never
}

// LeaseStats are the counters of a Lease.
type LeaseStats struct {
	Rows     int   // gauge
	Claims   int64 // of leases, the first included
	Missing  int64 // rows that were found missing
	Failures int64 // renewals that failed
}

// NewLease makes a Lease that is not claimed yet.
func NewLease(cfg LeaseConfig) (*Lease, error) {
	if cfg.Table == nil || cfg.Server.ID == "" || cfg.Lost == nil || cfg.Clock == nil || cfg.Logger == nil {
		return nil, errors.New("routing: table, server, clock, logger and what to do about a loss are required")
	}
	if cfg.TTL == 0 {
		cfg.TTL = 9 * time.Second
	}
	if cfg.RowTTL == 0 {
		cfg.RowTTL = 5 * time.Minute
	}
	if cfg.Linger == 0 {
		cfg.Linger = 10 * time.Second
	}
	l := &Lease{cfg: cfg, seed: maphash.MakeSeed(), server: cfg.Server}
	for i := range l.rows {
		l.rows[i] = map[string]*row{}
	}
	return l, nil
}

// Stats returns the counters.
func (l *Lease) Stats() LeaseStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	for _, b := range l.rows {
		s.Rows += len(b)
	}
	return s
}

func (l *Lease) bucket(user string) map[string]*row {
	return l.rows[maphash.String(l.seed, user)%buckets]
}

// Register puts a user's row, and returns once it is acknowledged: only then may a
// stream of the user's read anything. The stream calls release when it has ended.
func (l *Lease) Register(ctx context.Context, user string) (release func(), err error) {
	l.removing.RLock()
	defer l.removing.RUnlock()
	l.mu.Lock()
	b := l.bucket(user)
	r := b[user]
	if r == nil {
		r = &row{}
		b[user] = r
	}
	r.streams++
	// A lease that is claimed from here on puts this row, too: it is in the map.
	server, acked := l.server, r.acked == l.server.Epoch && r.acked != 0
	l.mu.Unlock()
	release = sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if r.streams--; r.streams == 0 {
			r.idle = l.cfg.Clock()
		}
	})
	if acked {
		return release, nil
	}
	if _, err := l.cfg.Table.Put(ctx, server, []string{user}, l.cfg.RowTTL); err != nil {
		release()
		return nil, err
	}
	l.mu.Lock()
	r.acked = max(r.acked, server.Epoch)
	l.mu.Unlock()
	return release, nil
}

// Run claims the first lease, calls ready, renews the lease until ctx ends, and releases it.
func (l *Lease) Run(ctx context.Context, ready func()) error {
	began, warned := l.cfg.Clock(), false
	for {
		err := l.claim(ctx)
		switch {
		case err == nil:
			ready()
			l.keep(ctx)
			return nil
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end of ctx is no failure
		case l.cfg.Patience >= 0 && l.cfg.Clock().Sub(began) >= l.cfg.Patience:
			return err
		case !warned:
			warned = true
			l.cfg.Logger.Warn("routing: no lease yet, retrying", "error", err)
		}
		if wait.For(ctx, l.cfg.TTL/9) != nil {
			return nil //nolint:nilerr // the end of ctx is no failure
		}
	}
}

// claim starts a new epoch and puts all rows.
func (l *Lease) claim(ctx context.Context) error {
	began := l.cfg.Clock()
	l.mu.Lock()
	l.server.Epoch++
	l.complete = false
	server := l.server
	l.stats.Claims++
	l.mu.Unlock()
	if err := l.cfg.Table.Claim(ctx, server, l.cfg.TTL); err != nil {
		return err
	}
	for i := range buckets {
		if _, err := l.putBucket(ctx, server, i); err != nil {
			return err
		}
	}
	l.mu.Lock()
	l.renewed, l.complete = began, true
	l.mu.Unlock()
	return nil
}

// putBucket puts the rows of a bucket, and returns how many of those that had been
// acknowledged were missing.
func (l *Lease) putBucket(ctx context.Context, server Server, i int) (missing int, err error) {
	var unacked, acked []string
	l.mu.Lock()
	for user, r := range l.rows[i] {
		if r.acked == server.Epoch {
			acked = append(acked, user)
		} else {
			unacked = append(unacked, user)
		}
	}
	l.mu.Unlock()
	l.removing.RLock()
	defer l.removing.RUnlock()
	for n, list := range [][]string{unacked, acked} {
		for len(list) > 0 {
			part := list[:min(batch, len(list))]
			absent, err := l.cfg.Table.Put(ctx, server, part, l.cfg.RowTTL)
			if n == 1 {
				missing += absent
			}
			if err != nil { // the rows may be there, and unknown to others
				return missing, err
			}
			l.mu.Lock()
			for _, u := range part {
				if r := l.rows[i][u]; r != nil {
					r.acked = max(r.acked, server.Epoch)
				}
			}
			l.mu.Unlock()
			list = list[len(part):]
		}
	}
	return missing, nil
}

// keep renews the lease until ctx ends, then releases it.
func (l *Lease) keep(ctx context.Context) {
	t := time.NewTicker(l.cfg.TTL / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTimeout)
			defer cancel()
			l.mu.Lock()
			server := l.server
			l.mu.Unlock()
			if err := l.cfg.Table.Release(end, server); err != nil {
				l.cfg.Logger.Warn("routing: lease not released; it will expire", "error", err)
			}
			return
		case <-t.C:
			l.Renew(ctx)
		}
	}
}

// Renew renews the lease, puts a part of the rows again and removes those without a
// stream. Run calls it.
func (l *Lease) Renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.TTL)
	defer cancel()
	began := l.cfg.Clock()
	l.mu.Lock()
	server, i, complete := l.server, l.nextBucket, l.complete
	l.nextBucket = (l.nextBucket + 1) % buckets
	l.mu.Unlock()
	held, err := l.cfg.Table.Renew(ctx, server, l.cfg.TTL)
	held = held && complete // an interrupted claim is repeated, with all rows
	missing := 0
	switch {
	case err != nil:
	case !held:
		l.cfg.Logger.Warn("routing: the lease was lost; claiming a new one", "epoch", server.Epoch)
		// Lost is called after the rows are put: later commits find them.
		if err = l.claim(ctx); err == nil {
			l.cfg.Lost()
		}
	default:
		l.mu.Lock()
		l.renewed = began
		l.mu.Unlock()
		missing, err = l.putBucket(ctx, server, i)
		if l.missed += missing; l.missed > 0 && err == nil {
			missing, l.missed = l.missed, 0
			l.cfg.Logger.Warn("routing: rows were lost and put again", "rows", missing)
			l.cfg.Lost()
		}
	}
	if err == nil {
		err = l.sweep(ctx, server)
	}
	if err == nil {
		l.mu.Lock()
		l.stats.Missing += int64(missing)
		l.mu.Unlock()
		return
	}
	l.mu.Lock()
	l.stats.Failures++
	// Without a renewal for as long as a lease lasts, changes may have been sent without
	// this process. That is reported again each time a lease passes, and once more when
	// the table is back.
	lost := began.Sub(l.renewed) >= l.cfg.TTL
	if lost {
		l.renewed = began
	}
	l.mu.Unlock()
	l.cfg.Logger.Warn("routing: renewal failed, retrying", "error", err)
	if lost {
		l.cfg.Lost()
	}
}

// sweep removes the rows of users who have had no stream for a while.
func (l *Lease) sweep(ctx context.Context, server Server) error {
	l.removing.Lock()
	defer l.removing.Unlock()
	now := l.cfg.Clock()
	var users []string
	l.mu.Lock()
	for _, b := range l.rows {
		for user, r := range b {
			if len(users) < batch && r.streams == 0 && now.Sub(r.idle) >= l.cfg.Linger {
				users = append(users, user)
				delete(b, user)
			}
		}
	}
	l.mu.Unlock()
	if len(users) == 0 {
		return nil
	}
	// A row whose removal failed expires, or is put again.
	return l.cfg.Table.Remove(ctx, server, users)
}
