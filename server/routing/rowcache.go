package routing

import (
	"context"
	"crypto/rand"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/parley-chat/parley/server/infra/bounded"
)

// Users are in buckets, each with a token that changes whenever a row of its users is
// added. All tokens are fields of one hash, so that one command reads those of all members
// of a chat, in a cluster, too. Rows that were read are as good as new while the token is
// the one that was read before them.
const (
	tokenBuckets = 1 << 10
	// rowCacheAge bounds how long rows are used that have expired or were removed: until
	// then messages go to a process that has no stream of the user.
	rowCacheAge = leaseCache
	// maxCachedRows bounds the users whose rows are cached; beyond it all are dropped.
	maxCachedRows = 1 << 16
)

// bucketOf is the bucket of a user, the same in every process and release.
func bucketOf(user string) uint16 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(user))
	return uint16(h.Sum32() % tokenBuckets)
}

// tokens are the tokens of buckets; one that Redis does not have is empty.
type tokens map[uint16]string

// readTokens reads the tokens of users' buckets in one command.
func readTokens(ctx context.Context, c redis.Cmdable, key string, users []string) (tokens, error) {
	t := tokens{}
	for _, u := range users {
		t[bucketOf(u)] = ""
	}
	buckets := slices.Collect(maps.Keys(t))
	values, err := c.HMGet(ctx, key, fields(buckets)...).Result()
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		t[buckets[i]], _ = v.(string)
	}
	return t, nil
}

func (t tokens) of(user string) string { return t[bucketOf(user)] }

// add gives buckets without a token one, so that the next lookup can cache their rows.
func (t tokens) add(ctx context.Context, p redis.Pipeliner, key string) {
	for b, token := range t {
		if token == "" {
			p.HSetNX(ctx, key, field(b), rand.Text())
		}
	}
}

func field(bucket uint16) string { return strconv.Itoa(int(bucket)) }

func fields(buckets []uint16) []string {
	out := make([]string, len(buckets))
	for i, b := range buckets {
		out[i] = field(b)
	}
	return out
}

// rowCache holds rows of users. It is used without Redis's lock: a row that is put
// while it is read is found by its token.
//
// A token is new and random each time, never a count: Redis may lose tokens, and a count
// that begins again would come to a value that it had before.
type rowCache struct {
	mu    sync.Mutex
	users map[string]cachedRows
	// unmarked has the buckets with rows that this process has put and not marked yet, with
	// the number of the last such row. A mark that failed is made up for by the next put,
	// which may find the rows there and would have nothing to mark.
	unmarked map[uint16]uint64
	added    uint64 // rows so far
}

// cachedRows are the rows of a user as they were read after the token.
type cachedRows struct {
	token string
	until time.Time
	keys  []rowKey
}

// lookup returns the rows that are cached under the present tokens, and the users of whom
// there are none, each once.
func (c *rowCache) lookup(users []string, t tokens, now time.Time) (rows map[string][]rowKey, unknown []string) {
	rows = make(map[string][]rowKey, len(users))
	asked := map[string]bool{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range users {
		e, ok := c.users[u]
		switch {
		case ok && e.token == t.of(u) && now.Before(e.until):
			if len(e.keys) > 0 {
				rows[u] = e.keys
			}
		case !asked[u]:
			asked[u] = true
			unknown = append(unknown, u)
		}
	}
	return rows, unknown
}

// store caches rows, unless there was no token before them.
func (c *rowCache) store(user string, e cachedRows) {
	if e.token == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users == nil {
		c.users = map[string]cachedRows{}
	}
	bounded.Put(c.users, user, e, maxCachedRows)
}

// forget drops rows that are known to be gone.
func (c *rowCache) forget(users []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range users {
		delete(c.users, u)
	}
}

// changed notes that a row of a user was, or may have been, added.
func (c *rowCache) changed(user string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unmarked == nil {
		c.unmarked = map[uint16]uint64{}
	}
	c.added++
	c.unmarked[bucketOf(user)] = c.added
}

// mark gives all buckets with added rows new tokens. Two puts may mark a bucket twice;
// neither returns before its own rows are marked: a row that comes while a mark is under
// way stays unmarked.
func (c *rowCache) mark(ctx context.Context, r redis.Cmdable, key string) error {
	c.mu.Lock()
	marked := maps.Clone(c.unmarked)
	c.mu.Unlock()
	if len(marked) == 0 {
		return nil
	}
	values := make([]any, 0, 2*len(marked))
	for b := range marked {
		values = append(values, field(b), rand.Text())
	}
	if err := r.HSet(ctx, key, values...).Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for b, n := range marked {
		if c.unmarked[b] == n { // no row has come since
			delete(c.unmarked, b)
		}
	}
	return nil
}
