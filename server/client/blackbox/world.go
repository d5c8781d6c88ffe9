package blackbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/wait"
)

const (
	// lookEvery is how often the test looks at what the client shows.
	lookEvery = 100 * time.Millisecond
	// staysFor is how long what is shown must stay right.
	staysFor = 500 * time.Millisecond
)

// world is what a scenario works with. The goroutine of the scenario uses it; text is safe for concurrent use.
type world struct {
	ctx      context.Context
	cfg      *Config
	scenario Scenario
	dir      string
	timeout  time.Duration
	server   *server
	proxy    *proxy
	key      *auth.Key
	can      []string // abilities of the client
	devices  int
	children []*child
	err      error

	mu    sync.Mutex
	texts int
}

func newWorld(ctx context.Context, cfg *Config, s Scenario, dir string) (*world, error) {
	w := &world{ctx: ctx, cfg: cfg, scenario: s, dir: dir, timeout: cfg.Timeout}
	var err error
	if w.server, err = startServer(ctx, cfg.Server, dir); err != nil {
		return nil, err
	}
	if w.key, err = w.server.key(); err == nil {
		w.proxy, err = newProxy(ctx, w.server.addr, rand.New(rand.NewPCG(cfg.Seed, 1)))
	}
	if err != nil {
		w.server.kill()
		return nil, err
	}
	return w, nil
}

// close ends everything that runs.
func (w *world) close() {
	for _, c := range w.children {
		if c.p == nil {
			continue
		}
		if w.err == nil {
			c.stop()
		} else {
			c.kill()
		}
		_ = c.p.in.Close()
	}
	w.proxy.close()
	w.server.kill()
}

// end ends the scenario with an error, on its own goroutine.
func (w *world) end(err error) {
	w.err = err
	runtime.Goexit()
}

// failf ends the scenario, because the client is wrong.
func (w *world) failf(format string, args ...any) { w.end(fmt.Errorf(format, args...)) }

// must ends the scenario if the test itself failed.
func (w *world) must(err error) {
	if err != nil {
		w.end(&brokenError{err})
	}
}

// text returns a text that no other message of the scenario has.
func (w *world) text(sender string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts++
	return fmt.Sprintf("%s %d", sender, w.texts)
}

func (w *world) sleep(d time.Duration) { w.must(wait.For(w.ctx, d)) }

// until looks until there is no difference left. It ends the scenario with the last one after the timeout.
func (w *world) until(what string, look func() string, of *child) {
	for end := time.Now().Add(w.timeout); ; w.sleep(lookEvery) {
		left := look()
		if left == "" {
			return
		}
		if time.Now().After(end) {
			w.failf("%s: not within %s: %s%s", what, w.timeout, left, of.p.why())
		}
	}
}

// equal waits until clients show what the store has, and looks whether that stays so.
func (w *world) equal(clients ...*child) {
	for _, c := range clients {
		var since time.Time
		connection := ""
		w.until("the client shows what the store has", func() string {
			want, err := c.user.stored(c.open)
			w.must(err)
			got := c.show()
			connection = got.Connection
			if n := len(got.Refused); n > c.refusals {
				return fmt.Sprintf("refused: got %v, want %d of them", got.Refused, c.refusals)
			}
			if d := difference(got, want, c.open); d != "" {
				since = time.Time{}
				return fmt.Sprintf("%s (connection %q)", d, connection)
			}
			if since.IsZero() {
				since = time.Now()
			}
			if time.Since(since) < staysFor {
				return "what is shown does not stay right"
			}
			return ""
		}, c)
	}
}

// shown waits until the client shows something.
func (w *world) shown(c *child, what string, right func(*Shown) bool) {
	w.until(what, func() string {
		if right(c.show()) {
			return ""
		}
		return "the client does not show it"
	}, c)
}

// once ends the scenario unless the store has the client's texts in a chat, each of them once and in order.
func (w *world) once(u *user, chat string, texts []string) {
	list, err := u.history(chat)
	w.must(err)
	var got []string
	for _, m := range list {
		if m.Sender == u.id {
			got = append(got, m.Text)
		}
	}
	if !slices.Equal(got, texts) {
		w.failf("the store has the messages %q of the client, want %q", got, texts)
	}
}

// alongside runs functions beside each other and waits for them.
func (w *world) alongside(list ...func() error) {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, f := range list {
		wg.Go(func() { errs[i] = f() })
	}
	wg.Wait()
	w.must(errors.Join(errs...))
}

// chatter returns a function that sends n messages with pauses.
func (u *user) chatter(chat string, n int, pause time.Duration) func() error {
	return func() error {
		for range n {
			if _, err := u.trySend(chat); err != nil {
				return err
			}
			if err := wait.For(u.w.ctx, pause); err != nil {
				return err
			}
		}
		return nil
	}
}

// sleepShortly sleeps for a random part of a time. It is safe for use beside the goroutine of the scenario.
func (w *world) sleepShortly(most time.Duration) {
	_ = wait.For(w.ctx, time.Duration(w.proxy.chance()*float64(most)))
}

// within gives waits another timeout.
func (w *world) within(timeout time.Duration, f func()) {
	was := w.timeout
	w.timeout = max(was, timeout)
	f()
	w.timeout = was
}
