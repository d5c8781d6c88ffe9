package group

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrClosed is the error of requests when the coordinator has been closed.
var ErrClosed = errors.New("the coordinator of consumer groups is closed")

// Coordinator answers requests about groups. It is safe for concurrent use.
type Coordinator struct {
	cfg     Config
	started time.Time
	end     context.CancelFunc
	running sync.WaitGroup
	store   chan struct{} // there are rows to be stored
	sooner  chan struct{} // the machine is to be woken sooner

	mu      sync.Mutex
	m       *machine
	token   uint64
	callers map[uint64]chan kmsg.Response
	rows    []Row  // to be stored
	number  uint64 // of the last write that they belong to
	waking  time.Duration
	closed  chan struct{}
}

// New reads the rows of the store and starts a coordinator, which runs until Close. ctx is for the reading. An error
// names the row that cannot be read.
func New(ctx context.Context, cfg Config) (*Coordinator, error) {
	cfg = cfg.withDefaults()
	all := rows{groups: map[string]header{}, offsets: map[string]map[partitionKey]offset{}}
	if err := cfg.Store.Load(ctx, all.add); err != nil {
		return nil, fmt.Errorf("read consumer groups: %w", err)
	}
	if err := all.check(); err != nil {
		return nil, fmt.Errorf("read consumer groups: %w", err)
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	c := &Coordinator{
		cfg: cfg, started: cfg.Clock(), end: end, store: make(chan struct{}, 1), sooner: make(chan struct{}, 1),
		callers: map[uint64]chan kmsg.Response{}, waking: never, closed: make(chan struct{}),
	}
	c.m = newMachine(cfg, all, c.now())
	c.flush()
	c.running.Go(func() { c.write(life) })
	c.running.Go(func() { c.wake(life) })
	return c, nil
}

// Close ends the coordinator. Requests that wait return ErrClosed. It returns once the store is no longer used.
func (c *Coordinator) Close() {
	c.mu.Lock()
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	c.mu.Unlock()
	c.end()
	c.running.Wait()
}

// Handle answers a request, whose kind and version must be in Versions. JoinGroup and SyncGroup wait for other members,
// and a call that stores waits for the store. If ctx ends before that, because the connection did, Handle returns its
// error. The request must not change any more.
func (c *Coordinator) Handle(ctx context.Context, client Client, req kmsg.Request) (kmsg.Response, error) {
	if v, ok := Versions()[kmsg.Key(req.Key())]; !ok || req.GetVersion() < v.Min || req.GetVersion() > v.Max {
		return nil, fmt.Errorf("the coordinator of groups does not answer %s in version %d",
			kmsg.NameForKey(req.Key()), req.GetVersion())
	}
	answer := make(chan kmsg.Response, 1)
	r := request{client: client, body: req}
	if _, ok := req.(*kmsg.JoinGroupRequest); ok {
		r.fresh = rand.Text()
	}
	c.mu.Lock()
	select {
	case <-c.closed:
		c.mu.Unlock()
		return nil, ErrClosed
	default:
	}
	c.token++
	r.token = c.token
	c.callers[r.token] = answer
	c.m.handle(c.now(), r)
	c.flush()
	c.mu.Unlock()
	select {
	case res := <-answer:
		return res, nil
	case <-c.closed:
		return nil, ErrClosed
	case <-ctx.Done():
		// The answer may be given between the end of ctx and the lock. Then there is nothing to forget.
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.callers, r.token)
		c.m.forget(c.now(), r.token)
		c.flush()
		return nil, ctx.Err()
	}
}

func (c *Coordinator) now() moment {
	t := c.cfg.Clock()
	return moment{elapsed: t.Sub(c.started), wall: t}
}

// flush passes on what the machine has made. The caller holds the lock.
func (c *Coordinator) flush() {
	rows, number, replies := c.m.take()
	for _, r := range replies {
		if answer := c.callers[r.token]; answer != nil {
			answer <- r.body
			delete(c.callers, r.token)
		}
	}
	c.rows, c.number = append(c.rows, rows...), number
	if len(c.rows) > 0 {
		signal(c.store)
	}
	if c.m.next() < c.waking {
		signal(c.sooner)
	}
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default: // it is still to be noticed
	}
}

// write stores rows: all that have gathered while the last ones were stored.
func (c *Coordinator) write(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.store:
		}
		c.mu.Lock()
		rows, number := c.rows, c.number
		c.rows = nil
		c.mu.Unlock()
		if len(rows) == 0 {
			continue
		}
		err := c.cfg.Store.Write(ctx, rows)
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			c.cfg.Logger.Error("consumer groups cannot be stored: commits and joins are refused until they can", "error", err)
		case err == nil && failing:
			c.cfg.Logger.Info("consumer groups can be stored again")
		}
		failing = err != nil
		c.mu.Lock()
		c.m.stored(c.now(), number, err != nil)
		c.flush()
		c.mu.Unlock()
	}
}

// longestSleep bounds the time until a wall clock that was set forward is noticed. Only expiry depends on it.
const longestSleep = time.Hour

// wake wakes the machine when something is due.
func (c *Coordinator) wake(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.sooner:
		}
		c.mu.Lock()
		now := c.now()
		c.waking = c.m.wake(now)
		c.flush()
		timer.Reset(min(longestSleep, c.waking-now.elapsed))
		c.mu.Unlock()
	}
}
