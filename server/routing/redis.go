package routing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/parley-chat/parley/server/infra/bounded"
)

// Settings of the client. A slower lookup is useless: by then the durable path has
// delivered the change.
const (
	dialTimeout    = 2 * time.Second
	commandTimeout = time.Second
	poolSize       = 64
	// leaseCache is how long a lease that was read counts as held. One that has ended
	// since costs a message to a process that no longer exists.
	leaseCache = 5 * time.Second
)

// Redis is the routing table that many processes share. Each command touches one key, so that a
// cluster serves it, too.
type Redis struct {
	c      redis.UniversalClient
	addr   string // for messages
	tls    bool
	prefix string
	clock  func() time.Time

	mu     sync.Mutex
	leases map[rowKey]cachedLease

	rows rowCache
}

// rowKey is a server under one of its leases.
type rowKey struct {
	id    string
	epoch uint64
}

// cachedLease is a lease that was held when it was read.
type cachedLease struct {
	server Server
	until  time.Time // of the cache
}

var (
	_ Table  = (*Redis)(nil)
	_ Lists  = (*Redis)(nil)
	_ Nudges = (*Redis)(nil)
)

// OpenRedis makes a client; it connects when it is first used. Errors fit into one
// line and hold no password.
func OpenRedis(o Options) (*Redis, error) {
	u, err := o.parse()
	if err != nil {
		return nil, err
	}
	logging.Disable() // what matters comes as an error
	if o.Prefix == "" {
		o.Prefix = "parley:"
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return &Redis{c: redis.NewUniversalClient(u), addr: strings.Join(u.Addrs, ","), tls: u.TLSConfig != nil,
		prefix: o.Prefix, clock: o.Clock, leases: map[rowKey]cachedLease{}}, nil
}

// ACL returns the rules of a Redis user with the permissions that this package needs under
// a prefix and no others, so that a leaked password opens nothing else: arguments for ACL
// SETUSER.
func ACL(prefix string) []string {
	return []string{
		"resetkeys", "~" + prefix + "*", "resetchannels", "&" + prefix + "*", "-@all",
		"+ping", "+hello", "+auth", "+client|setname", "+cluster|slots", "+cluster|shards",
		"+get", "+set", "+del", "+pexpire", "+sadd", "+srem", "+smembers", "+hmget", "+hset", "+hsetnx", "+eval",
		"+time",
		"+publish", "+subscribe", "+unsubscribe",
	}
}

// Addr is the address of Redis, for messages.
func (r *Redis) Addr() string { return r.addr }

// Ping checks that Redis answers.
func (r *Redis) Ping(ctx context.Context) error { return translate(r.c.Ping(ctx).Err()) }

// absent reports whether Redis answered that there is no such key. The error of sentinels
// without a primary wraps the same value, so that errors.Is would be wrong here.
func absent(err error) bool { return err == redis.Nil } //nolint:errorlint // see above

// translate makes an error of Redis one of this package's.
func translate(err error) error {
	if err == nil || absent(err) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func (r *Redis) serverKey(id string) string { return r.prefix + "s:" + id }
func (r *Redis) userKey(user string) string { return r.prefix + "u:" + user }
func (r *Redis) listKey(chat string) string { return r.prefix + "m:" + chat }
func (r *Redis) allKey() string             { return r.prefix + "servers" }
func (r *Redis) tokensKey() string          { return r.prefix + "tokens" }

// Scripts are sent whole each time: they are short, and a script that Redis has evicted
// would fail in the middle of a pipeline.
const (
	// Only its owner extends a lease.
	renewScript = `if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('PEXPIRE',KEYS[1],ARGV[2]) end return 0`
	// Only its owner removes a lease.
	releaseScript = `if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0`
	// Both in one step: a row without an expiry would stay for ever.
	putScript = `local n=redis.call('SADD',KEYS[1],ARGV[1]) redis.call('PEXPIRE',KEYS[1],ARGV[2]) return n`
	// An older list never replaces a newer one.
	listScript = `local v=redis.call('GET',KEYS[1])
if v and tonumber(string.match(v,'^%d+'))>=tonumber(ARGV[1]) then return 0 end
redis.call('SET',KEYS[1],ARGV[2],'PX',ARGV[3]) return 1`
)

// A lease's value is its server, one field per line; no field holds a line break.
func encodeServer(s Server) string {
	return strings.Join([]string{s.ID, s.Addr, s.Generation, strconv.FormatUint(s.Epoch, 10)}, "\n")
}

func decodeServer(v string) (s Server, ok bool) {
	f := strings.Split(v, "\n")
	if len(f) != 4 {
		return s, false
	}
	epoch, err := strconv.ParseUint(f[3], 10, 64)
	return Server{ID: f[0], Addr: f[1], Generation: f[2], Epoch: epoch}, err == nil
}

func encodeRow(s Server) string { return strconv.FormatUint(s.Epoch, 10) + ":" + s.ID }

func decodeRow(v string) (k rowKey, ok bool) {
	epoch, id, ok := strings.Cut(v, ":")
	n, err := strconv.ParseUint(epoch, 10, 64)
	return rowKey{id, n}, ok && err == nil
}

// Claim implements Table.
func (r *Redis) Claim(ctx context.Context, s Server, ttl time.Duration) error {
	if err := r.c.Set(ctx, r.serverKey(s.ID), encodeServer(s), ttl).Err(); err != nil {
		return translate(err)
	}
	return translate(r.c.SAdd(ctx, r.allKey(), s.ID).Err())
}

// Renew implements Table.
func (r *Redis) Renew(ctx context.Context, s Server, ttl time.Duration) (bool, error) {
	n, err := r.c.Eval(ctx, renewScript, []string{r.serverKey(s.ID)}, encodeServer(s), ttl.Milliseconds()).Int()
	if err != nil || n == 0 {
		return false, translate(err)
	}
	// The set of all servers may have lost this one although the lease was kept.
	return true, translate(r.c.SAdd(ctx, r.allKey(), s.ID).Err())
}

// Release implements Table.
func (r *Redis) Release(ctx context.Context, s Server) error {
	n, err := r.c.Eval(ctx, releaseScript, []string{r.serverKey(s.ID)}, encodeServer(s)).Int()
	if err != nil || n == 0 {
		return translate(err)
	}
	return translate(r.c.SRem(ctx, r.allKey(), s.ID).Err())
}

// Servers implements Table.
func (r *Redis) Servers(ctx context.Context) ([]Server, error) {
	ids, err := r.c.SMembers(ctx, r.allKey()).Result()
	if err != nil {
		return nil, translate(err)
	}
	if len(ids) > MaxServers {
		return nil, fmt.Errorf("%w: %d servers", ErrLimit, len(ids))
	}
	found, err := r.fetch(ctx, ids)
	if err != nil {
		return nil, err
	}
	var list []Server
	var expired []any
	for _, id := range ids {
		if s, ok := found[id]; ok {
			list = append(list, s)
		} else {
			expired = append(expired, id)
		}
	}
	if len(expired) > 0 { // a server that comes back adds itself with its next renewal
		if err := r.c.SRem(ctx, r.allKey(), expired...).Err(); err != nil {
			return nil, translate(err)
		}
	}
	slices.SortFunc(list, func(a, b Server) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// fetch reads leases and caches those that are held.
func (r *Redis) fetch(ctx context.Context, ids []string) (map[string]Server, error) {
	out := map[string]Server{}
	if len(ids) == 0 {
		return out, nil
	}
	got := make([]*redis.StringCmd, len(ids))
	p := r.c.Pipeline()
	for i, id := range ids {
		got[i] = p.Get(ctx, r.serverKey(id))
	}
	if _, err := p.Exec(ctx); err != nil && !absent(err) {
		return nil, translate(err)
	}
	now := r.clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, cmd := range got {
		v, err := cmd.Result()
		if absent(err) {
			continue
		}
		if err != nil {
			return nil, translate(err)
		}
		if s, ok := decodeServer(v); ok && s.ID == ids[i] {
			out[s.ID] = s
			bounded.Put(r.leases, rowKey{s.ID, s.Epoch}, cachedLease{s, now.Add(leaseCache)}, MaxServers)
		}
	}
	return out, nil
}

// Put implements Table. It marks the rows that were missing as changed before it returns,
// so that no lookup from then on relies on older ones.
func (r *Redis) Put(ctx context.Context, s Server, users []string, ttl time.Duration) (int, error) {
	if err := checkUsers(users); err != nil {
		return 0, err
	}
	if len(users) == 0 {
		return 0, nil
	}
	got := make([]*redis.Cmd, len(users))
	p := r.c.Pipeline()
	for i, u := range users {
		got[i] = p.Eval(ctx, putScript, []string{r.userKey(u)}, encodeRow(s), ttl.Milliseconds())
	}
	_, err := p.Exec(ctx)
	missing := 0
	for i, cmd := range got {
		n, cmdErr := cmd.Int()
		if n > 0 || cmdErr != nil { // after an error the row may be there or not
			r.rows.changed(users[i])
		}
		missing += n
		err = cmp.Or(err, cmdErr)
	}
	if err != nil {
		return missing, translate(err)
	}
	return missing, translate(r.rows.mark(ctx, r.c, r.tokensKey()))
}

// Remove implements Table. Lookups of other processes may find the rows for rowCacheAge.
func (r *Redis) Remove(ctx context.Context, s Server, users []string) error {
	if err := checkUsers(users); err != nil {
		return err
	}
	if len(users) == 0 {
		return nil
	}
	p := r.c.Pipeline()
	for _, u := range users {
		p.SRem(ctx, r.userKey(u), encodeRow(s))
	}
	_, err := p.Exec(ctx)
	r.rows.forget(users)
	return translate(err)
}

// Lookup implements Table. It removes rows of leases that are no longer held: no later
// lease has their epoch.
func (r *Redis) Lookup(ctx context.Context, users []string) (map[string][]Server, error) {
	if err := checkUsers(users); err != nil {
		return nil, err
	}
	out := map[string][]Server{}
	if len(users) == 0 {
		return out, nil
	}
	rows, err := r.rowsOf(ctx, users)
	if err != nil {
		return nil, err
	}
	leases, err := r.held(ctx, rows)
	if err != nil {
		return nil, err
	}
	stale := map[string][]any{}
	for u, keys := range rows {
		for _, k := range keys {
			if s, ok := leases[k]; ok {
				out[u] = append(out[u], s)
			} else {
				stale[u] = append(stale[u], encodeRow(Server{ID: k.id, Epoch: k.epoch}))
			}
		}
		slices.SortFunc(out[u], func(a, b Server) int { return cmp.Compare(a.ID, b.ID) })
	}
	if len(stale) > 0 {
		p := r.c.Pipeline()
		for u, values := range stale {
			p.SRem(ctx, r.userKey(u), values...)
		}
		_, _ = p.Exec(ctx) // after a failure the next lookup finds them again
		r.rows.forget(slices.Collect(maps.Keys(stale)))
	}
	return out, nil
}

// rowsOf returns the rows of users: those that have not changed from the cache, after one
// read of their tokens, and the others in a second round trip.
func (r *Redis) rowsOf(ctx context.Context, users []string) (map[string][]rowKey, error) {
	tokens, err := readTokens(ctx, r.c, r.tokensKey(), users)
	if err != nil {
		return nil, translate(err)
	}
	rows, unknown := r.rows.lookup(users, tokens, r.clock())
	if len(unknown) == 0 {
		return rows, nil
	}
	got := make([]*redis.StringSliceCmd, len(unknown))
	p := r.c.Pipeline()
	for i, u := range unknown {
		got[i] = p.SMembers(ctx, r.userKey(u))
	}
	tokens.add(ctx, p, r.tokensKey())
	if _, err := p.Exec(ctx); err != nil {
		return nil, translate(err)
	}
	until := r.clock().Add(rowCacheAge)
	for i, cmd := range got {
		values, err := cmd.Result()
		if err != nil {
			return nil, translate(err)
		}
		var keys []rowKey
		for _, v := range values {
			if k, ok := decodeRow(v); ok && len(values) <= MaxServers {
				keys = append(keys, k)
			}
		}
		if r.rows.store(unknown[i], cachedRows{token: tokens.of(unknown[i]), until: until, keys: keys}); len(keys) > 0 {
			rows[unknown[i]] = keys
		}
	}
	return rows, nil
}

// held returns the servers of those leases of rows that are held. It fetches the lease of a
// server with any row whose lease is not cached. The result does not depend on the cache,
// which may be cleared while leases are fetched.
func (r *Redis) held(ctx context.Context, rows map[string][]rowKey) (map[rowKey]Server, error) {
	held, unknown := map[rowKey]Server{}, map[string]bool{}
	for _, keys := range rows {
		for _, k := range keys {
			if s, ok := r.cached(k); ok {
				held[k] = s
			} else {
				unknown[k.id] = true
			}
		}
	}
	fetched, err := r.fetch(ctx, slices.Collect(maps.Keys(unknown)))
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(held, func(k rowKey, _ Server) bool { return unknown[k.id] })
	for id, s := range fetched {
		held[rowKey{id, s.Epoch}] = s
	}
	return held, nil
}

// cached returns the server of a lease that was held a moment ago.
func (r *Redis) cached(k rowKey) (Server, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, ok := r.leases[k]
	return l.server, ok && r.clock().Before(l.until)
}

// List implements Lists.
func (r *Redis) List(ctx context.Context, chatID string) (int64, []string, error) {
	v, err := r.c.Get(ctx, r.listKey(chatID)).Result()
	if absent(err) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, translate(err)
	}
	f := strings.Split(v, "\n")
	version, err := strconv.ParseInt(f[0], 10, 64)
	if err != nil || checkList(f[1:]) != nil {
		return 0, nil, nil //nolint:nilerr // not written by this package
	}
	return version, f[1:], nil
}

// SetList implements Lists.
func (r *Redis) SetList(ctx context.Context, chatID string, version int64, users []string) error {
	if err := checkList(users); err != nil {
		return err
	}
	value := strings.Join(append([]string{strconv.FormatInt(version, 10)}, users...), "\n")
	return translate(r.c.Eval(ctx, listScript, []string{r.listKey(chatID)}, version, value, ListTTL.Milliseconds()).Err())
}

// Close closes the connections.
func (r *Redis) Close() error { return r.c.Close() }
