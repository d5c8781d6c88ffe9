package routing

import (
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
