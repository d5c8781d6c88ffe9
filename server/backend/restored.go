package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/table"
)

// Restored is an installation whose tables were restored and of which no process runs yet.
type Restored struct {
	Store store.Store

	backend        Backend
	observe, lease time.Duration // observeTime, leaseTime
}

// OpenRestored opens the tables of an installation, and Redis, which must answer. Errors fit into
// one line; one that wraps dynamo.ErrMixed says that the tables are not of one moment.
func OpenRestored(ctx context.Context, d Distributed) (_ *Restored, err error) {
	if d.Redis.URL == "" {
		return nil, errors.New("redis is required: it has the servers that run, and what they have seen")
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	r := &Restored{observe: observeTime, lease: leaseTime}
	defer func() {
		if err != nil {
			_ = r.Close()
		}
	}()
	b := &r.backend
	if b.dynamo, err = dynamo.Open(ctx, dynamo.Options{Wire: d.Tables.wire(), Prefix: d.Tables.Prefix}); err != nil {
		return nil, d.Tables.Explain(err)
	}
	b.Store, r.Store = b.dynamo, b.dynamo
	if b.Routing, err = routing.OpenRedis(d.Redis); err != nil {
		return nil, err
	}
	return r, b.Routing.Check(ctx)
}

// Close closes the connections.
func (r *Restored) Close() error { return r.backend.Close() }

// How long leases and signs of life are watched, which is longer than the pauses between their
// renewals, and how long Redis keeps the lease of a server that was killed.
const (
	observeTime = 5 * time.Second
	leaseTime   = 12 * time.Second
)

// Running names the processes that run on these tables, or with this Redis. It takes 5 s, and 12 s if
// Redis has a server.
func (r *Restored) Running(ctx context.Context) ([]string, error) {
	before, err := r.signs(ctx)
	if err != nil {
		return nil, err
	}
	var servers []routing.Server
	for began := time.Now(); ; {
		if servers, err = r.backend.Routing.Servers(ctx); err != nil {
			return nil, fmt.Errorf("redis: which servers run: %w", err)
		}
		waited := time.Since(began)
		if waited >= r.lease || waited >= r.observe && len(servers) == 0 {
			break
		}
		if err := wait.For(ctx, r.observe/4); err != nil {
			return nil, err
		}
	}
	after, err := r.signs(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range servers {
		names = append(names, strings.TrimSpace(s.ID+" "+s.Addr))
	}
	for key, sign := range after {
		if before[key] != sign {
			names = append(names, sign.holder)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// sign is a row that a process renews while it runs.
type sign struct {
	holder string
	count  int64
}

func (r *Restored) signs(ctx context.Context) (map[store.Key]sign, error) {
	signs := map[store.Key]sign{}
	for row, err := range store.ScanAll(ctx, r.Store, store.Scan{Table: store.Leases, Segments: 1}) {
		if err != nil {
			return nil, fmt.Errorf("leases: %w", err)
		}
		l := table.LeaseFrom(row.Item) // a worker's has the same two
		signs[row.Key] = sign{l.Holder, l.Count}
	}
	return signs, nil
}

// Begin begins another line of history under a new generation, which processes that start from now on
// continue. Clients that were shown anything of another one start over.
func (r *Restored) Begin(ctx context.Context, generation string) error {
	_, heartbeats, err := r.backend.readSeen(ctx)
	if err != nil {
		return err
	}
	line, err := r.backend.dynamo.Begin(ctx, generation, heartbeats)
	if err != nil {
		return err
	}
	if err := r.backend.Routing.SetSeen(ctx, seenText(line)); err != nil {
		return fmt.Errorf("redis does not know of the line of history that has begun; repeat the command: %w", err)
	}
	return nil
}
