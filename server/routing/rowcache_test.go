package routing_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/parley-chat/parley/server/routing"
)

// around calls functions before and after what is sent to Redis: a command, or a pipeline
// by the name of its first.
type around struct {
	before func(name string, commands int) error
	after  func(name string)
}

func (h around) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h around) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h.run(cmd.Name(), 1, func() error { return next(ctx, cmd) })
	}
}

func (h around) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h.run(cmds[0].Name(), len(cmds), func() error { return next(ctx, cmds) })
	}
}

func (h around) run(name string, commands int, next func() error) error {
	if h.before != nil {
		if err := h.before(name, commands); err != nil {
			return err
		}
	}
	err := next()
	if h.after != nil {
		h.after(name)
	}
	return err
}

// process is a process at a Redis that others use, too, with a lease.
type process struct {
	*routing.Redis
	server routing.Server
}

func newProcess(t *testing.T, m *miniredis.Miniredis, id string) process {
	t.Helper()
	r, err := routing.OpenRedis(routing.Options{URL: "redis://" + m.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	p := process{r, routing.Server{ID: id, Addr: "h:1", Generation: "g", Epoch: 1}}
	if err := r.Claim(t.Context(), p.server, time.Minute); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p process) put(t *testing.T, users ...string) {
	t.Helper()
	if _, err := p.Put(t.Context(), p.server, users, time.Minute); err != nil {
		t.Fatal(err)
	}
}

// missing returns the users that a lookup does not find at a server.
func (p process) missing(t *testing.T, at string, users []string) (list []string) {
	t.Helper()
	found, err := p.Lookup(t.Context(), users)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range users {
		if !slices.ContainsFunc(found[u], func(s routing.Server) bool { return s.ID == at }) {
			list = append(list, u)
		}
	}
	return list
}

func many(n int) (users []string) {
	for i := range n {
		users = append(users, fmt.Sprint("u", i))
	}
	return users
}

// A send into a chat asks Redis with one command, however many members the chat has,
// those without a stream included.
func TestOneCommandForAllMembers(t *testing.T) {
	m := miniredis.RunT(t)
	a, b := newProcess(t, m, "a"), newProcess(t, m, "b")
	users := many(1000)
	for part := range slices.Chunk(users[:700], 100) {
		a.put(t, part...)
	}
	commands := 0
	b.Client().AddHook(around{before: func(_ string, n int) error { commands += n; return nil }})
	for i := range 5 {
		commands = 0
		if got := b.missing(t, "a", users); len(got) != 300 {
			t.Fatalf("lookup %d: %d of 1,000 users not found, want 300", i, len(got))
		}
		if i > 1 && commands != 1 {
			t.Errorf("lookup %d sent %d commands, want 1", i, commands)
		}
	}
	a.put(t, users[700])
	if got := b.missing(t, "a", users); len(got) != 299 {
		t.Errorf("after one more row %d users are not found, want 299", len(got))
	}
}

// A row that is put at any moment of another process's lookup is found by the lookup that
// follows, also if the first one has cached what was there before.
func TestRowPutDuringLookup(t *testing.T) {
	for _, moment := range []string{"hmget", "smembers"} {
		m := miniredis.RunT(t)
		a, b := newProcess(t, m, "a"), newProcess(t, m, "b")
		a.put(t, "u")
		once := sync.Once{}
		b.Client().AddHook(around{after: func(name string) {
			if name == moment {
				once.Do(func() {
					c := newProcess(t, m, "c")
					c.put(t, "u")
				})
			}
		}})
		b.missing(t, "a", []string{"u"})
		if got := b.missing(t, "c", []string{"u"}); got != nil {
			t.Errorf("put after %s: %v not found", moment, got)
		}
	}
}

// A put whose mark fails has failed. The next one, which finds its rows there, marks them.
func TestMarkIsMadeUpFor(t *testing.T) {
	m := miniredis.RunT(t)
	a, b := newProcess(t, m, "a"), newProcess(t, m, "b")
	b.put(t, "u") // so that the bucket has a token
	for range 2 {
		b.missing(t, "b", []string{"u"})
	}
	fail := true
	a.Client().AddHook(around{before: func(name string, _ int) error {
		if name == "hset" && fail {
			fail = false
			return errors.New("cut")
		}
		return nil
	}})
	if _, err := a.Put(t.Context(), a.server, []string{"u"}, time.Minute); !errors.Is(err, routing.ErrUnavailable) {
		t.Fatalf("a put that is not marked: %v, want ErrUnavailable", err)
	}
	if n, err := a.Put(t.Context(), a.server, []string{"u"}, time.Minute); n != 0 || err != nil {
		t.Fatalf("the next put: %d rows were missing, %v; want none", n, err)
	}
	if got := b.missing(t, "a", []string{"u"}); got != nil {
		t.Errorf("%v not found", got)
	}
}

// A row that is added while a mark of its bucket is under way needs a mark of its own.
func TestRowAddedDuringMark(t *testing.T) {
	a := newProcess(t, miniredis.RunT(t), "a")
	marks := 0
	a.Client().AddHook(around{before: func(name string, _ int) error {
		if marks++; marks == 1 {
			a.Changed("u")
		}
		return nil
	}})
	a.Changed("u")
	for range 3 {
		if err := a.Mark(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if marks != 2 {
		t.Errorf("%d marks, want one for each of two rows", marks)
	}
}

// Of two marks at once, the later one does not stand for a row that came after it began.
func TestRowAddedAfterMarksBegan(t *testing.T) {
	a := newProcess(t, miniredis.RunT(t), "a")
	reached, release := make(chan struct{}), make(chan struct{})
	marks := 0
	a.Client().AddHook(around{before: func(string, int) error {
		if marks++; marks == 1 { // the first mark is held until another is done and a row has come
			close(reached)
			<-release
		}
		return nil
	}})
	mark := func() {
		if err := a.Mark(t.Context()); err != nil {
			t.Error(err)
		}
	}
	a.Changed("u")
	var first sync.WaitGroup
	first.Go(mark)
	<-reached
	mark()
	a.Changed("u")
	close(release)
	first.Wait()
	if mark(); marks != 3 {
		t.Errorf("%d marks, want a third for the row that came last", marks)
	}
}

// Tokens may be lost alone: without one nothing is taken from the cache.
func TestTokensLostAlone(t *testing.T) {
	m := miniredis.RunT(t)
	a, b := newProcess(t, m, "a"), newProcess(t, m, "b")
	b.missing(t, "a", []string{"u"}) // nobody is there, and there is no token yet
	a.put(t, "u")
	m.Del(a.TokensKey())
	if got := b.missing(t, "a", []string{"u"}); got != nil {
		t.Errorf("%v not found", got)
	}
}

// Redis may lose all it has: rows that are put again are found, whatever was cached.
func TestLostTokens(t *testing.T) {
	m := miniredis.RunT(t)
	a, b := newProcess(t, m, "a"), newProcess(t, m, "b")
	users := many(20)
	for round := range 5 {
		a.put(t, users[:10]...)
		for range 2 {
			b.missing(t, "a", users)
		}
		m.FlushAll()
		if round%2 == 0 {
			b.missing(t, "a", users) // caches that nobody is there
		}
		for _, p := range []process{a, b} {
			if err := p.Claim(t.Context(), p.server, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		a.put(t, users...)
		if got := b.missing(t, "a", users); got != nil {
			t.Fatalf("round %d: %v not found", round, got)
		}
		m.FlushAll()
		for _, p := range []process{a, b} {
			if err := p.Claim(t.Context(), p.server, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What a process has put is found by others from then on, while many put and look up.
func TestPutsAndLookupsAtOnce(t *testing.T) {
	m := miniredis.RunT(t)
	a, b := newProcess(t, m, "a"), newProcess(t, m, "b")
	var mu sync.Mutex
	var acknowledged []string
	var writers, readers sync.WaitGroup
	done := make(chan struct{})
	for w := range 8 {
		writers.Go(func() {
			for i := range 100 {
				u := fmt.Sprintf("u%d-%d", w, i)
				if _, err := a.Put(t.Context(), a.server, []string{u}, time.Minute); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				acknowledged = append(acknowledged, u)
				mu.Unlock()
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				mu.Lock()
				users := slices.Clone(acknowledged)
				mu.Unlock()
				// Users who are still to come are asked for as well, so that their absence is cached.
				found, err := b.Lookup(t.Context(), slices.Concat(users, []string{"u0-99", "u1-99", "u7-99"}))
				if err != nil {
					t.Error(err)
					return
				}
				for _, u := range users {
					if len(found[u]) == 0 {
						t.Errorf("%s is not found", u)
						return
					}
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	if got := b.missing(t, "a", acknowledged); got != nil {
		t.Errorf("%d users are not found at the end", len(got))
	}
}
