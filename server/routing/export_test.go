package routing

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// What tests outside of the package see of its inside.
const (
	Buckets     = buckets
	LeaseCache  = leaseCache
	DialTimeout = dialTimeout
)

func (r *Redis) Client() redis.UniversalClient { return r.c }

func (r *Redis) Prefix() string { return r.prefix }

func (r *Redis) TokensKey() string { return r.tokensKey() }

// Changed and Mark are the two steps by which a put says that it added a row.
func (r *Redis) Changed(user string) { r.rows.changed(user) }

func (r *Redis) Mark(ctx context.Context) error { return r.rows.mark(ctx, r.c, r.tokensKey()) }

func (r *Redis) ListKey(chat string) string { return r.listKey(chat) }

// CacheLeases fills the cache of leases with n others.
func (r *Redis) CacheLeases(n int) {
	for i := range n {
		r.leases[rowKey{fmt.Sprint("full", i), 1}] = cachedLease{}
	}
}

// Parse is what the options mean to the client.
func (o Options) Parse() (*redis.UniversalOptions, error) { return o.parse() }

// Current is the server with its present epoch.
func (l *Lease) Current() Server { l.mu.Lock(); defer l.mu.Unlock(); return l.server }

// SetTable replaces the table below a Lease.
func (l *Lease) SetTable(t Table) { l.cfg.Table = t }

// Fresh is an empty cache in another process, which loads and shares lists as r does.
func (r *Recipients) Fresh(generation string, lists Lists) *Recipients {
	return NewRecipients(generation, lists, r.load)
}

// Claim claims a lease, as Run does at first.
func (l *Lease) Claim(ctx context.Context) error { return l.claim(ctx) }
