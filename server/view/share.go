package view

import (
	"context"
	"errors"
	"sync"
	"time"
)

// sharedLoads lets calls share what is expensive to load: the loads under way, by key. At most one of a key runs at a
// time, and at most one waits for its end. Only calls that came before a load began share it, so each sees what was
// written before the call. mu is held for a few steps, never while something is loaded.
type sharedLoads[T any] struct {
	mu   sync.Mutex
	keys map[string]*shareLoads[T]
}

type shareLoads[T any] struct{ running, next *load[T] }

type load[T any] struct {
	done  chan struct{} // closed at its end
	value T
	err   error
}

// errAbandoned is the error of a load whose caller gave up.
var errAbandoned = errors.New("share: load abandoned")

// Get returns what f loads, in a call of f that begins after the call of Get, by
// this caller or another.
func (ls *sharedLoads[T]) Get(ctx context.Context, key string, f func(context.Context) (T, error)) (T, error) {
	for {
		l, before, lead := ls.join(key)
		if lead {
			return ls.lead(ctx, key, l, before, f)
		}
		select {
		case <-l.done:
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		}
		if !errors.Is(l.err, errAbandoned) {
			return l.value, l.err
		}
	}
}

// join returns the load of a key that has not begun yet, or a new one, which the
// caller is to lead once the load before, if there is one, is done.
func (ls *sharedLoads[T]) join(key string) (l, before *load[T], lead bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	k := ls.keys[key]
	if k == nil {
		if ls.keys == nil {
			ls.keys = map[string]*shareLoads[T]{}
		}
		k = &shareLoads[T]{}
		ls.keys[key] = k
	}
	if k.next != nil {
		return k.next, nil, false
	}
	k.next = &load[T]{done: make(chan struct{}), err: errAbandoned} // unless it completes
	return k.next, k.running, true
}

// lead waits for the load before and does one for all callers that joined until it began.
func (ls *sharedLoads[T]) lead(
	ctx context.Context, key string, l, before *load[T], f func(context.Context) (T, error),
) (T, error) {
	defer ls.end(key, l)
	if before != nil {
		select {
		case <-before.done:
		case <-ctx.Done():
			return l.value, ctx.Err()
		}
	}
	ls.begin(key, l)
	value, err := f(ctx)
	if err == nil || ctx.Err() == nil {
		l.value, l.err = value, err
	}
	return value, err
}

// begin closes a load to calls that come later.
func (ls *sharedLoads[T]) begin(key string, l *load[T]) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	k := ls.keys[key]
	k.running, k.next = l, nil
}

func (ls *sharedLoads[T]) end(key string, l *load[T]) {
	ls.mu.Lock()
	k := ls.keys[key]
	if k.running == l {
		k.running = nil
	}
	if k.next == l {
		k.next = nil
	}
	if k.running == nil && k.next == nil {
		delete(ls.keys, key)
	}
	ls.mu.Unlock()
	close(l.done)
}

// Bounds of cached values.
const (
	maxIdle     = time.Minute // since the last use
	maxPerOwner = 4
	maxEntries  = 1 << 10
)

// shareCache holds values that later calls may need, within bounds of size, number and time.
type shareCache[T any] struct {
	max int

	mu      sync.Mutex
	entries map[uint64]*shareEntry[T]
	size    int
	clock   int64
}

type shareEntry[T any] struct {
	value T
	id    uint64
	owner string
	size  int
	used  int64 // by clock
	at    time.Time
}

// newShareCache makes a cache of values whose sizes sum up to max at most.
func newShareCache[T any](max int) *shareCache[T] {
	return &shareCache[T]{max: max, entries: map[uint64]*shareEntry[T]{}}
}

// Put adds a value under an id that no other value has. An owner's fifth value replaces
// the owner's oldest.
func (c *shareCache[T]) Put(owner string, id uint64, value T, size int, now time.Time) {
	if size > c.max {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	if k := c.entries[id]; k != nil {
		k.used, k.at = c.clock, now
		return
	}
	c.entries[id] = &shareEntry[T]{value: value, id: id, owner: owner, size: size, used: c.clock, at: now}
	c.size += size
	for {
		k := c.surplus(owner, now)
		if k == nil {
			return
		}
		delete(c.entries, k.id)
		c.size -= k.size
	}
}

// surplus returns the value that must be removed first, nil if all may stay.
func (c *shareCache[T]) surplus(owner string, now time.Time) *shareEntry[T] {
	var oldest, own *shareEntry[T]
	n := 0
	for _, k := range c.entries {
		if oldest == nil || k.used < oldest.used {
			oldest = k
		}
		if k.owner == owner {
			n++
			if own == nil || k.used < own.used {
				own = k
			}
		}
	}
	switch {
	case n > maxPerOwner:
		return own
	case c.size > c.max, len(c.entries) > maxEntries, now.Sub(oldest.at) > maxIdle:
		return oldest
	}
	return nil
}

// Get returns an owner's value, if it is still cached.
func (c *shareCache[T]) Get(owner string, id uint64, now time.Time) (value T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.entries[id]; k != nil && k.owner == owner && now.Sub(k.at) <= maxIdle {
		return k.value, true
	}
	return value, false
}
