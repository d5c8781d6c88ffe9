// Package seldom keeps complaints that come thousands of times a second out of the log.
//
// It owns the counting, not the words. A Limiter may be used by many goroutines.
package seldom

import (
	"sync"
	"time"
)

// Limiter lets each kind of complaint through once a second, with how many there were.
// Its zero value is ready.
type Limiter struct {
	mu    sync.Mutex
	kinds map[string]*complaints
}

type complaints struct {
	at    time.Time
	since int // left out
}

// kindsMax bounds a limiter's memory; complaints are of few kinds.
const kindsMax = 100

// Allow reports whether a complaint of a kind may be written now, and how many of it were
// left out since the last one.
func (l *Limiter) Allow(kind string, now time.Time) (left int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.kinds[kind]
	if c == nil {
		if l.kinds == nil || len(l.kinds) >= kindsMax {
			l.kinds = map[string]*complaints{}
		}
		c = &complaints{}
		l.kinds[kind] = c
	}
	if now.Sub(c.at) < time.Second {
		c.since++
		return 0, false
	}
	left, c.since, c.at = c.since, 0, now
	return left, true
}
