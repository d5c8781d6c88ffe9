package routing_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/routing/routingtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is one to be held to the contract.
type engine interface {
	routing.Table
	routing.Lists
	routing.Nudges
}

// fixture is an engine and what may happen to it.
type fixture struct {
	engine
	pass  func(time.Duration) // lets time pass
	flush func()              // loses everything
}

// ttl is that of leases in tests: real Redis has to live through it.
const ttl = 300 * time.Millisecond

type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.at }
func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func inMemory(t *testing.T) *fixture {
	c := &clock{at: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	m := routingtest.New(c.now)
	return &fixture{engine: m, pass: c.pass, flush: m.Flush}
}

func inMiniredis(t *testing.T) *fixture {
	m := miniredis.RunT(t)
	c := &clock{at: time.Now()}
	r, err := routing.OpenRedis(routing.Options{URL: "redis://" + m.Addr(), Clock: c.now})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return &fixture{engine: r, pass: func(d time.Duration) { m.FastForward(d); c.pass(d) }, flush: m.FlushAll}
}

// realRedis returns the address of a Redis for tests.
func realRedis(t *testing.T) string {
	t.Helper()
	addr := os.Getenv("PARLEY_TEST_REDIS")
	if addr == "" {
		t.Skip("not run: PARLEY_TEST_REDIS is not set")
	}
	return addr
}

// inRedis is a user of a real Redis with the permissions of ACL only,
// under a prefix of its own.
func inRedis(t *testing.T) *fixture { return asUser(t, routing.Options{URL: realRedis(t)}) }

// asUser makes a user with the rights of ACL at a Redis of any kind, and goes in as that
// one.
func asUser(t *testing.T, o routing.Options) *fixture {
	t.Helper()
	opened, err := routing.OpenRedis(o)
	testkit.Must(t, err)
	admin := opened.Client()
	name := "test" + strings.ToLower(rand.Text())
	prefix := name + ":"
	// Rights and keys are each node's own.
	nodes := func(f func(context.Context, redis.Cmdable) error) {
		if c, ok := admin.(*redis.ClusterClient); ok {
			testkit.Must(t,
				c.ForEachMaster(context.Background(), func(ctx context.Context, n *redis.Client) error { return f(ctx, n) }))
			return
		}
		testkit.Must(t, f(context.Background(), admin))
	}
	args := []any{"ACL", "SETUSER", name, "on", ">secret"}
	for _, a := range routing.ACL(prefix) {
		args = append(args, a)
	}
	nodes(func(ctx context.Context, n redis.Cmdable) error { return n.(doer).Do(ctx, args...).Err() })
	flush := func() {
		nodes(func(ctx context.Context, n redis.Cmdable) error {
			keys, err := n.Keys(ctx, prefix+"*").Result()
			for _, k := range keys {
				err = errors.Join(err, n.Del(ctx, k).Err())
			}
			return err
		})
	}
	u, err := url.Parse(o.URL)
	testkit.Must(t, err)
	u.User = url.User(name)
	o.URL, o.Password, o.Prefix = u.String(), "secret", prefix
	r, err := routing.OpenRedis(o)
	testkit.Must(t, err)
	t.Cleanup(func() {
		flush()
		_ = r.Close()
		nodes(func(ctx context.Context, n redis.Cmdable) error {
			return n.(doer).Do(ctx, "ACL", "DELUSER", name).Err()
		})
		_ = admin.Close()
	})
	return &fixture{engine: r, pass: time.Sleep, flush: flush} // a real server has its own clock
}

type doer interface {
	Do(ctx context.Context, args ...any) *redis.Cmd
}

// each runs a test of the contract on every engine at hand.
func each(t *testing.T, run func(t *testing.T, w *fixture)) {
	for name, open := range map[string]func(*testing.T) *fixture{"memory": inMemory, "miniredis": inMiniredis,
		"redis": inRedis, "secured": inSecured, "cluster": inCluster, "sentinel": inSentinel} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // real engines have to live through the times that others only simulate
			run(t, open(t))
		})
	}
}

func names(list []routing.Server) string {
	var out []string
	for _, s := range list {
		out = append(out, fmt.Sprintf("%s/%d", s.ID, s.Epoch))
	}
	return strings.Join(out, " ")
}

func TestLease(t *testing.T) {
	each(t, func(t *testing.T, w *fixture) {
		ctx := t.Context()
		a, b := routing.Server{"a", "h:1", "g", 1}, routing.Server{"b", "h:2", "g", 1}
		testkit.Must(t, w.Claim(ctx, a, ttl))
		testkit.Must(t, w.Claim(ctx, b, time.Minute))
		list, err := w.Servers(ctx)
		testkit.Must(t, err)
		if !slices.Equal(list, []routing.Server{a, b}) {
			t.Fatalf("servers %v", list)
		}
		other := a
		other.Epoch = 2
		if held, err := w.Renew(ctx, other, ttl); err != nil || held {
			t.Fatalf("renewed another's lease: %t %v", held, err)
		}
		if held, err := w.Renew(ctx, a, ttl); err != nil || !held {
			t.Fatalf("renew: %t %v", held, err)
		}
		w.pass(ttl + 50*time.Millisecond)
		if held, err := w.Renew(ctx, a, ttl); err != nil || held {
			t.Fatalf("renewed a lease that had expired: %t %v", held, err)
		}
		list, err = w.Servers(ctx)
		testkit.Must(t, err)
		if names(list) != "b/1" {
			t.Fatalf("after expiry: %v", list)
		}
		testkit.Must(t, w.Release(ctx, routing.Server{"b", "h:2", "g", 7})) // not its lease
		testkit.Must(t, w.Claim(ctx, other, time.Minute))
		list, err = w.Servers(ctx)
		testkit.Must(t, err)
		if names(list) != "a/2 b/1" {
			t.Fatalf("claimed again: %v", list)
		}
		testkit.Must(t, w.Release(ctx, b))
		list, err = w.Servers(ctx)
		testkit.Must(t, err)
		if names(list) != "a/2" {
			t.Fatalf("released: %v", list)
		}
	})
}

func TestRows(t *testing.T) {
	each(t, func(t *testing.T, w *fixture) {
		ctx := t.Context()
		a, b := routing.Server{"a", "h:1", "g", 1}, routing.Server{"b", "h:2", "g", 1}
		testkit.Must(t, w.Claim(ctx, a, time.Minute))
		testkit.Must(t, w.Claim(ctx, b, time.Minute))
		put := func(s routing.Server, ttl time.Duration, want int, users ...string) {
			t.Helper()
			n, err := w.Put(ctx, s, users, ttl)
			testkit.Must(t, err)
			if n != want {
				t.Fatalf("%d rows were missing, want %d", n, want)
			}
		}
		where := func(user, want string) {
			t.Helper()
			m, err := w.Lookup(ctx, []string{user, "nobody", user})
			testkit.Must(t, err)
			if got := names(m[user]); got != want || m["nobody"] != nil {
				t.Fatalf("%s is at %q, want %q; %v", user, got, want, m)
			}
		}
		put(a, time.Minute, 2, "u", "v")
		put(a, time.Minute, 1, "u", "w") // u was there
		put(b, time.Minute, 1, "u")
		where("u", "a/1 b/1")
		where("w", "a/1")
		testkit.Must(t, w.Remove(ctx, a, []string{"u"}))
		where("u", "b/1")
		put(a, ttl, 1, "short")
		where("short", "a/1")
		w.pass(ttl + 50*time.Millisecond + leaseCacheInTests(w))
		where("short", "")

		// A lease lost takes all rows with it; a new one does not bring them back.
		testkit.Must(t, w.Release(ctx, a))
		w.pass(leaseCacheInTests(w))
		where("w", "")
		a.Epoch = 2
		testkit.Must(t, w.Claim(ctx, a, time.Minute))
		where("w", "")
		put(a, time.Minute, 1, "w")
		where("w", "a/2")

		w.flush()
		w.pass(leaseCacheInTests(w))
		where("w", "")
		where("u", "")
	})
}

// Leases that were seen are dropped when there are too many of them, at any moment of a
// lookup that relies on them: no row of a lease that is held is lost by it.
func TestManyLeases(t *testing.T) {
	w := inMiniredis(t)
	r, ctx := w.engine.(*routing.Redis), t.Context()
	a, b := routing.Server{"a", "h:1", "g", 1}, routing.Server{"b", "h:2", "g", 1}
	for user, s := range map[string]routing.Server{"u": a, "v": b} {
		testkit.Must(t, w.Claim(ctx, s, time.Minute))
		_, err := w.Put(ctx, s, []string{user}, time.Minute)
		testkit.Must(t, err)
	}
	_, err := w.Lookup(ctx, []string{"u"}) // a is seen
	testkit.Must(t, err)
	r.CacheLeases(1023)
	for range 2 {
		m, err := w.Lookup(ctx, []string{"u", "v"}) // b is asked for
		testkit.Must(t, err)
		if names(m["u"]) != "a/1" || names(m["v"]) != "b/1" {
			t.Fatalf("u is at %q, v at %q", names(m["u"]), names(m["v"]))
		}
	}
}

// leaseCacheInTests is how long an engine may take a lost lease for held, and a row that
// has expired for present.
func leaseCacheInTests(w *fixture) time.Duration {
	if _, ok := w.engine.(*routing.Redis); ok {
		return routing.LeaseCache + 100*time.Millisecond
	}
	return 0
}

func TestLists(t *testing.T) {
	each(t, func(t *testing.T, w *fixture) {
		ctx := t.Context()
		want := func(version int64, users ...string) {
			t.Helper()
			v, u, err := w.List(ctx, "c")
			testkit.Must(t, err)
			if v != version || !slices.Equal(u, users) {
				t.Fatalf("%d %v, want %d %v", v, u, version, users)
			}
		}
		want(0)
		testkit.Must(t, w.SetList(ctx, "c", 3, []string{"u", "v"}))
		testkit.Must(t, w.SetList(ctx, "c", 2, []string{"x"})) // older
		want(3, "u", "v")
		testkit.Must(t, w.SetList(ctx, "c", 11, []string{"u"})) // as text, 11 is less than 3
		want(11, "u")
		w.flush()
		want(0)
	})
}

// A nudge comes to those who listen to its shard, and to nobody else.
func TestNudges(t *testing.T) {
	each(t, func(t *testing.T, w *fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		listen := func(shards ...int) <-chan routing.Nudge {
			ready, got := make(chan struct{}), make(chan routing.Nudge, 16)
			go func() {
				ended <- w.Subscribe(ctx, shards, func() { close(ready) }, func(n routing.Nudge) { got <- n })
			}()
			select {
			case <-ready:
			case err := <-ended:
				t.Fatal(err)
			}
			return got
		}
		one, other := listen(0, 63), listen(1)
		testkit.Must(t, w.Nudge(ctx, []routing.Nudge{{Shard: 2}, {Shard: 0, Payload: []byte("a\x00b")},
			{Shard: 1, Payload: []byte("c")}, {Shard: 63, Payload: nil}}))
		texts := map[int]string{}
		for range 2 { // in any order: nodes of a cluster pass them on by themselves
			n := <-one
			texts[n.Shard] = string(n.Payload)
		}
		if empty, ok := texts[63]; texts[0] != "a\x00b" || !ok || empty != "" {
			t.Fatalf("%v", texts)
		}
		if n := <-other; n.Shard != 1 || string(n.Payload) != "c" {
			t.Fatalf("%v", n)
		}
		cancel()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		if len(one)+len(other) > 0 {
			t.Errorf("%d nudges more", len(one)+len(other))
		}
		testkit.Must(t, w.Nudge(t.Context(), []routing.Nudge{{Shard: 1}})) // to nobody
	})
}

func TestLimits(t *testing.T) {
	each(t, func(t *testing.T, w *fixture) {
		ctx, many := t.Context(), make([]string, 4096+1)
		_, lookup := w.Lookup(ctx, many)
		_, put := w.Put(ctx, routing.Server{}, many, ttl)
		for name, err := range map[string]error{
			"lookup": lookup, "put": put, "remove": w.Remove(ctx, routing.Server{}, many), "list": w.SetList(ctx, "c", 1, many),
			"nudge":     w.Nudge(ctx, []routing.Nudge{{Payload: make([]byte, 1<<20+1)}}),
			"shard":     w.Nudge(ctx, []routing.Nudge{{Shard: -1}}),
			"no shards": w.Subscribe(ctx, nil, nil, nil), "listen": w.Subscribe(ctx, []int{3, -1}, nil, nil),
			"shards": w.Subscribe(ctx, make([]int, 1025), nil, nil),
		} {
			if !errors.Is(err, routing.ErrLimit) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if m, err := w.Lookup(ctx, nil); err != nil || len(m) != 0 {
			t.Errorf("nobody: %v %v", m, err)
		}
	})
}

func TestRedisAway(t *testing.T) {
	m := miniredis.RunT(t)
	r, err := routing.OpenRedis(routing.Options{URL: "redis://u:hunter2@" + m.Addr()})
	testkit.Must(t, err)
	defer r.Close()
	m.Close()
	ctx := t.Context()
	_, lookup := r.Lookup(ctx, []string{"u"})
	_, renew := r.Renew(ctx, routing.Server{ID: "a"}, ttl)
	_, _, list := r.List(ctx, "c")
	for name, err := range map[string]error{
		"lookup": lookup, "renew": renew, "list": list, "claim": r.Claim(ctx, routing.Server{ID: "a"}, ttl),
		"ping":  r.Ping(ctx),
		"nudge": r.Nudge(ctx, []routing.Nudge{{}}), "nudged": r.Subscribe(ctx, []int{0}, nil, nil),
	} {
		if !errors.Is(err, routing.ErrUnavailable) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOptions(t *testing.T) {
	for u, want := range map[string]string{
		"redis://h:1":            "[h:1] 0 false",
		"redis://h":              "[h:6379] 0 false",
		"redis://[::1]":          "[[::1]:6379] 0 false",
		"rediss://me:pw@h:1/3":   "[h:1] 3 true",
		"redis://h:1,i:2":        "[h:1 i:2] 0 false",
		"redis://h?cluster=true": "[h:6379] 0 false",
		"redis://h,i:1/2?master=m&sentinel_user=u": "[h:26379 i:1] 2 false",
		"http://h:1": "error", "redis://": "error", "redis://h/x": "error", "://pw": "error",
		"redis://u:pw@h,i/3": "error", "redis://h/1?cluster=true": "error", "redis://h/-1": "error",
		"redis://h?cluster=yes":           "error",
		"redis://h?master=m&cluster=true": "error", "redis://h?sentinel_user=u": "error", "redis://h?pw=x": "error",
		"redis://h?master=a&master=b": "error",
	} {
		o, err := routing.Options{URL: u}.Parse()
		got := "error"
		if err == nil {
			got = fmt.Sprint(o.Addrs, o.DB, o.TLSConfig != nil)
			got = strings.Join(strings.Fields(got), " ")
		} else if strings.Contains(err.Error(), "pw") {
			t.Errorf("%s: the error shows a secret: %v", u, err)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", u, got, want)
		}
	}
}
