package limit_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/routing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is one that tests set.
type clock struct{ at time.Time }

func newClock() *clock                { return &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)} }
func (c *clock) now() time.Time       { return c.at }
func (c *clock) pass(d time.Duration) { c.at = c.at.Add(d) }
func table(t *testing.T, text string) limit.Table {
	t.Helper()
	out, err := limit.ParseTable(text)
	testkit.Must(t, err)
	return out
}

// fixture is processes that have one set of limits.
type fixture struct {
	nodes []*limit.Limiter
	pass  func(time.Duration)
	redis *miniredis.Miniredis // nil: there is one process
	clock *clock
}

func node(t *testing.T, c limit.Config, text string) *limit.Limiter {
	t.Helper()
	c.Table = table(t, text)
	l, err := limit.New(c)
	testkit.Must(t, err)
	return l
}

func alone(t *testing.T, text string) *fixture {
	c := newClock()
	return &fixture{nodes: []*limit.Limiter{node(t, limit.Config{Clock: c.now}, text)}, pass: c.pass, clock: c}
}

func openRedis(t *testing.T, url string) limit.Redis {
	t.Helper()
	r, err := routing.OpenRedis(routing.Options{URL: url, Prefix: "test" + strings.ToLower(rand.Text()) + ":"})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return limit.Redis{Redis: r}
}

// together is two processes with clocks that differ.
func together(t *testing.T, text string) *fixture {
	m, c := miniredis.RunT(t), newClock()
	m.SetTime(c.now())
	shared := openRedis(t, "redis://"+m.Addr())
	in := &fixture{redis: m, clock: c}
	for _, ahead := range []time.Duration{0, 7 * time.Second} {
		in.nodes = append(in.nodes, node(t, limit.Config{Shared: shared, Wait: time.Minute,
			Clock: func() time.Time { return c.now().Add(ahead) }}, text))
	}
	in.pass = func(d time.Duration) {
		c.pass(d)
		m.SetTime(c.now())
		m.FastForward(d)
	}
	return in
}

// both runs a test with one process and with several.
func both(t *testing.T, text string, f func(t *testing.T, in *fixture)) {
	t.Run("memory", func(t *testing.T) { f(t, alone(t, text)) })
	t.Run("redis", func(t *testing.T) { f(t, together(t, text)) })
}

func (in *fixture) allow(t *testing.T, i int, name limit.Name, key string, cost int) limit.Decision {
	t.Helper()
	d, err := in.nodes[i%len(in.nodes)].Allow(t.Context(), name, key, cost)
	testkit.Must(t, err)
	if d.Allowed != (d.RetryAfter == 0) {
		t.Fatalf("a decision that is none: %+v", d)
	}
	return d
}

// A bucket lets its burst through, then what comes back, and says when that is. Keys and rules
// have nothing to do with each other.
func TestBucket(t *testing.T) {
	both(t, "invite=2/s:4,otp_ip=1/m:1", func(t *testing.T, in *fixture) {
		for i := range 4 {
			if d := in.allow(t, i, limit.Invite, "a", 1); !d.Allowed || d.Remaining != 3-i {
				t.Fatalf("%d: %+v", i, d)
			}
		}
		for i := range 2 {
			if d := in.allow(t, i, limit.Invite, "a", 1); d.Allowed || d.RetryAfter != 500*time.Millisecond || d.Remaining != 0 {
				t.Fatalf("the fifth: %+v", d)
			}
		}
		if d := in.allow(t, 0, limit.Invite, "a", 3); d.RetryAfter != 1500*time.Millisecond {
			t.Fatalf("what costs more comes later: %+v", d)
		}
		if !in.allow(t, 1, limit.Invite, "b", 4).Allowed || !in.allow(t, 1, limit.OTPAddress, "a", 1).Allowed {
			t.Fatal("another key, or another rule, has its own bucket")
		}
		in.pass(499 * time.Millisecond)
		if in.allow(t, 0, limit.Invite, "a", 1).Allowed {
			t.Fatal("a unit was back too early")
		}
		in.pass(time.Millisecond)
		if !in.allow(t, 1, limit.Invite, "a", 1).Allowed || in.allow(t, 0, limit.Invite, "a", 1).Allowed {
			t.Fatal("one unit was back")
		}
		in.pass(time.Hour) // no more than a bucket full comes back
		if d := in.allow(t, 0, limit.Invite, "a", 0); !d.Allowed || d.Remaining != 4 {
			t.Fatalf("after an hour: %+v", d)
		}
		_, err := in.nodes[0].Allow(t.Context(), limit.Invite, "a", 5)
		if over := new(limit.Refused); !errors.As(err, &over) || over.AtOnce != 4 || over.RetryAfter != 0 {
			t.Fatalf("what costs more than a bucket holds: %v", err)
		}
		if d := in.allow(t, 0, limit.Invite, "a", 4); !d.Allowed || d.Remaining != 0 {
			t.Fatalf("what was refused for good has cost something: %+v", d)
		}
		if in.allow(t, 1, limit.Invite, "a", 1).Allowed {
			t.Fatal("the bucket was not empty")
		}
	})
}

// Under ten times what a rule allows, what is let through is within 2 % of it, whether one
// process counts or two (S-25). Under less than it nothing is refused.
func TestAccuracy(t *testing.T) {
	for name, rate := range map[limit.Name]int{limit.Send: 10, limit.Invite: 10} { // open and closed
		both(t, string(name)+"=10/s:60", func(t *testing.T, in *fixture) {
			const seconds, burst = 100, 60
			allowed := 0
			for i := range seconds * 10 * rate {
				if in.allow(t, i, name, "u", 1).Allowed {
					allowed++
				}
				in.pass(time.Second / time.Duration(10*rate))
			}
			want := seconds*rate + burst
			if off := allowed - want; off*50 > want || off*50 < -want {
				t.Errorf("%s: %d of %d were let through", name, allowed, want)
			}
			in.pass(time.Minute)
			for i := range 300 {
				if !in.allow(t, i, name, "u", 1).Allowed {
					t.Fatalf("%s: %d was refused", name, i)
				}
				in.pass(105 * time.Millisecond)
			}
		})
	}
}

// Two processes share a bucket: of an open rule each may be ahead by a tenth of it, of a closed
// one by nothing.
func TestProcessesShareABucket(t *testing.T) {
	for name, most := range map[limit.Name]int{limit.Send: 60 + 2*6, limit.Invite: 60} {
		in := together(t, string(name)+"=1/s:60")
		allowed := 0
		for i := range 200 {
			if in.allow(t, i, name, "u", 1).Allowed {
				allowed++
			}
		}
		if allowed < 60 || allowed > most {
			t.Errorf("%s: %d were let through", name, allowed)
		}
	}
}

// Who is far from a limit costs Redis a call for every few requests, and who is over it none.
func TestCallsOfRedis(t *testing.T) {
	in := together(t, "send=1/s:60")
	calls := func(f func()) int {
		before := in.redis.CommandCount()
		f()
		return in.redis.CommandCount() - before
	}
	in.allow(t, 0, limit.Send, "warm", 60)
	if n := calls(func() {
		for range 6 {
			in.allow(t, 0, limit.Send, "u", 1)
		}
	}); n != 0 {
		t.Errorf("6 requests of 60 asked Redis %d times", n)
	}
	if n := calls(func() {
		for range 54 {
			in.allow(t, 0, limit.Send, "u", 1)
		}
	}); n == 0 || n > 9*4 { // a script counts as its commands, too
		t.Errorf("54 requests asked Redis %d times", n)
	}
	if n := calls(func() {
		for range 100 {
			if in.allow(t, 0, limit.Send, "u", 1).Allowed {
				t.Error("more than the bucket holds was let through")
			}
		}
	}); n != 0 {
		t.Errorf("100 requests that memory can refuse asked Redis %d times", n)
	}
}

// While Redis is away an open rule is each process's own and a closed one refuses; when it is
// back what was let through meanwhile is charged.
func TestRedisAway(t *testing.T) {
	in := together(t, "send=1/s:60,invite=1/s:60")
	one, ctx := in.nodes[0], t.Context()
	in.redis.SetError("ERR away")
	for i := range 60 {
		if !in.allow(t, 0, limit.Send, "u", 1).Allowed {
			t.Fatalf("%d of an open rule was refused", i)
		}
	}
	if in.allow(t, 0, limit.Send, "u", 1).Allowed {
		t.Fatal("an open rule has no limit without Redis")
	}
	for range 3 {
		d, err := one.Allow(ctx, limit.Invite, "u", 1)
		if d.Allowed || d.RetryAfter <= 0 || !errors.Is(err, limit.ErrUnavailable) {
			t.Fatalf("a closed rule: %+v, %v", d, err)
		}
	}
	if !one.SharedAway() {
		t.Error("nobody can see that Redis is away")
	}
	in.redis.SetError("")
	if _, err := one.Allow(ctx, limit.Invite, "u", 1); err == nil {
		t.Error("Redis was asked again at once")
	}
	in.pass(2 * time.Second)
	if !in.allow(t, 0, limit.Invite, "u", 1).Allowed || one.SharedAway() {
		t.Error("Redis is back, and nobody sees it")
	}
	in.allow(t, 0, limit.Send, "u", 1) // two units are back here
	if d := in.allow(t, 1, limit.Send, "u", 20); d.Allowed {
		t.Errorf("the other process does not know of 60 that were let through: %+v", d)
	}
}

// A call that its caller gives up is no failure of Redis.
func TestCallerGone(t *testing.T) {
	in := together(t, "invite=1/s:60")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d, err := in.nodes[0].Allow(ctx, limit.Invite, "u", 1); d.Allowed || err == nil {
		t.Errorf("%+v, %v", d, err)
	}
	if in.nodes[0].SharedAway() {
		t.Error("Redis counts as away")
	}
}

// A clock that is set, forwards or back, costs nobody more than two buckets' time.
func TestClockJumps(t *testing.T) {
	both(t, "invite=1/s:10", func(t *testing.T, in *fixture) {
		for range 10 {
			in.allow(t, 0, limit.Invite, "u", 1)
		}
		in.pass(24 * time.Hour)
		for i := range 10 {
			if !in.allow(t, i, limit.Invite, "u", 1).Allowed {
				t.Fatal("a day later the bucket is full")
			}
		}
		in.pass(-48 * time.Hour)
		if d := in.allow(t, 0, limit.Invite, "u", 1); d.Allowed || d.RetryAfter > 20*time.Second {
			t.Fatalf("after the clock was set back: %+v", d)
		}
		for waited := 0; !in.allow(t, 0, limit.Invite, "u", 1).Allowed; waited++ {
			if in.pass(time.Second); waited == 20 {
				t.Fatal("the bucket did not fill again")
			}
		}
	})
}

// A key is forgotten when its bucket is full: in Redis it expires, in memory it makes room.
func TestKeysExpire(t *testing.T) {
	in := together(t, "invite=1/s:10")
	in.allow(t, 0, limit.Invite, "someone@example.com", 4)
	keys := in.redis.Keys()
	if len(keys) != 1 || strings.Contains(keys[0], "example") {
		t.Fatalf("keys %q: want one that names nobody", keys)
	}
	if ttl := in.redis.TTL(keys[0]); ttl <= 3*time.Second || ttl > 4*time.Second {
		t.Errorf("the key expires after %v", ttl)
	}
	in.pass(4 * time.Second)
	if n := len(in.redis.Keys()); n != 0 {
		t.Errorf("%d keys are left", n)
	}

	const most = 64
	c := newClock()
	l := node(t, limit.Config{Clock: c.now, Keys: most}, "send=1/s:10,invite=1/s:10")
	for i := range 10 * most {
		d, err := l.Allow(t.Context(), limit.Send, fmt.Sprint(i), 1)
		testkit.Must(t, err)
		if !d.Allowed {
			t.Fatal("an open rule lets keys in that there is no room for")
		}
	}
	if n := l.Keys(); n > most {
		t.Errorf("%d keys in memory, more than %d", n, most)
	}
	refused := 0
	for i := range 10 * most {
		d, err := l.Allow(t.Context(), limit.Invite, fmt.Sprint(i), 1)
		testkit.Must(t, err)
		if !d.Allowed {
			refused++
		}
	}
	if refused == 0 || l.Keys() > most {
		t.Errorf("a closed rule let all keys in, %d in memory", l.Keys())
	}
	c.pass(time.Second)
	if d, err := l.Allow(t.Context(), limit.Invite, "new", 1); err != nil || !d.Allowed {
		t.Errorf("there is room again: %+v, %v", d, err)
	}
}

// What an installation sets, and what is wrong with it in one line.
func TestTable(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "send=1/s:60",
		"off":                  "send=off",
		"send=off":             "send=off",
		"send=5/m":             "send=5/m:5",
		"invite=off, 200%":     "send=2/s:120",
		"send=3/h:9,300%":      "send=3/h:9",
		"1%":                   "send=1/s:1",
		"user_requests=1/s:10": "send=1/s:60",
		"create_group=1/d:1":   "send=1/s:60",
	} {
		var got []string
		for _, r := range table(t, text).Rules() {
			if r.Name == limit.Send {
				got = append(got, r.String())
			}
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("%q: %v, want %s", text, got, want)
		}
	}
	for _, text := range []string{"x", "send", "send=1", "send=1/w", "send=0/s", "send=1/s:0", "send=-1/s", "send=1/s:x",
		"what=1/s", "user_requests=1/s:9",
		"address_requests=5/m", "0%", "20000%", "%", "send=9999999/s", ",", "off,off"} {
		if _, err := limit.ParseTable(text); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, r := range table(t, "1%").Rules() { // what a call may cost is let through, however little else is
		if r.Name == limit.UserRequests && r.Burst != 10 {
			t.Errorf("%s", r)
		}
	}
	for _, r := range limit.DefaultTable().Rules() { // each can be said as it is declared
		same, err := limit.ParseTable(r.String())
		if err != nil || fmt.Sprint(same) != fmt.Sprint(limit.DefaultTable()) {
			t.Errorf("%s: %v", r, err)
		}
	}
}

// Rules that are off count nothing, and a rule that there is not is a mistake.
func TestOffAndUnknown(t *testing.T) {
	in := alone(t, "send=off")
	for range 1_000 {
		if !in.allow(t, 0, limit.Send, "u", 10).Allowed {
			t.Fatal("a rule that is off refused")
		}
	}
	if n := in.nodes[0].Keys(); n != 0 {
		t.Errorf("%d keys", n)
	}
	if d, err := in.nodes[0].Allow(t.Context(), "made up", "u", 1); d.Allowed || !errors.Is(err, limit.ErrNoRule) {
		t.Errorf("%+v, %v", d, err)
	}
}

// Rules are as they are declared, and those of sign-in and invitations are closed.
func TestDeclaredRules(t *testing.T) {
	want := map[limit.Name]string{
		limit.OTPAddress: "", limit.OTPNetwork: "", limit.OTPGlobal: "", limit.SignIn: "", limit.Invite: "",
		limit.Lookup: "lookup_identifier=100/d:100",
		limit.Send:   "send=1/s:60", limit.CreateGroup: "create_group=10/h:10", limit.AddMember: "add_member=100/h:100",
		limit.Subscribe: "subscribe=10/m:10", limit.UpdateProfile: "update_profile=10/m:5", limit.Export: "export=2/d:2",
	}
	for _, r := range limit.DefaultTable().Rules() {
		text, listed := want[r.Name]
		if text != "" && r.String() != text {
			t.Errorf("%s, want %s", r, text)
		}
		open := listed && (r.Name == limit.Send || r.Name == limit.CreateGroup || r.Name == limit.AddMember ||
			r.Name == limit.Subscribe || r.Name == limit.UpdateProfile || r.Name == limit.Export)
		if r.Closed != (listed && !open) {
			t.Errorf("%s: closed is %t", r.Name, r.Closed)
		}
		if r.By == "" {
			t.Errorf("%s: by what?", r.Name)
		}
	}
}

// The script in a real Redis does what it does in the stand-in of the other tests, with the
// rights that processes have.
func TestRealRedis(t *testing.T) {
	url := os.Getenv("PARLEY_TEST_REDIS")
	if url == "" {
		t.Skip("not run: PARLEY_TEST_REDIS is not set")
	}
	shared := openRedis(t, url)
	b := limit.Bucket{Interval: time.Hour, Window: 5 * time.Hour}
	take := func(done, cost int, allowed bool, units int) {
		t.Helper()
		ok, full, err := shared.Take(t.Context(), "k", b, done, cost)
		testkit.Must(t, err)
		if ok != allowed || full > time.Duration(units)*time.Hour || full < time.Duration(units)*time.Hour-time.Minute {
			t.Fatalf("%t, full in %v; want %t, %d h", ok, full, allowed, units)
		}
	}
	take(0, 0, true, 0)
	take(0, 2, true, 2)
	take(1, 1, true, 4)
	take(0, 2, false, 4)
	take(0, 1, true, 5)
	take(3, 1, false, 8)
	take(9, 0, false, 10) // two windows at most
}

func BenchmarkAllow(b *testing.B) {
	l, err := limit.New(limit.Config{Clock: time.Now, Table: limit.DefaultTable()})
	testkit.Must(b, err)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = l.Allow(b.Context(), limit.UserRequests, "user", 1)
	}
}
