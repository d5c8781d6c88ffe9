package edge

import (
	"sync"
	"time"
)

// WriteLimit ends connections whose peers do not read what is written to them. Its timer is
// not set for each write but runs on while there are any, and checks when it fires whether
// one has been under way for too long: a deadline for each write, set and cleared again,
// would cost as much as the write's own way through the server.
type WriteLimit struct {
	After time.Duration // the longest time for one write
	Cut   func()        // is called from the timer, with nothing but the limit's own lock; nil: no limit

	mu    sync.Mutex
	until time.Time // zero: no write is under way
	timer *time.Timer
	set   bool // the timer will fire
}

// Start begins a write.
func (l *WriteLimit) Start() {
	if l.Cut == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Now().Add(l.After)
	if l.set {
		return
	}
	if l.set = true; l.timer == nil {
		l.timer = time.AfterFunc(l.After, l.fire)
	} else {
		l.timer.Reset(l.After)
	}
}

// Stop ends a write. Once it has returned nothing is cut before the next: the connection
// that was written to may have another use by then.
func (l *WriteLimit) Stop() {
	if l.Cut == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Time{}
}

// Close releases the timer, after the last write.
func (l *WriteLimit) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until = (time.Time{}); l.timer != nil {
		l.timer.Stop()
	}
	l.set = false
}

func (l *WriteLimit) fire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set = false
	if l.until.IsZero() {
		return
	}
	if left := time.Until(l.until); left > 0 { // it was set for an earlier write
		l.set = true
		l.timer.Reset(left)
		return
	}
	l.Cut()
}
