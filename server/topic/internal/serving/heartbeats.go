package serving

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// Heartbeats is what is known of a group's heartbeats and not all stored yet.
type Heartbeats struct {
	mu       sync.Mutex
	count    int64 // in the row, and since
	written  int64 // heartbeats that the row has
	at       int64 // of the last one, unix ms
	restarts int64
	due      time.Time // when members that are attached count as heard from, and the row is written
	interval time.Duration
}

// Init begins at a time within the interval that is not that of other groups.
func (p *Heartbeats) Init(sub *storage.Subscription, now time.Time) {
	p.interval = sub.Config.GetHeartbeatInterval().AsDuration()
	p.count, p.written, p.at, p.restarts = sub.Row.Heartbeats, sub.Row.Heartbeats, sub.Row.HeartbeatAt, sub.Row.Restarts
	p.due = now.Add(rand.N(p.interval))
}

// Every changes the interval.
func (p *Heartbeats) Every(interval time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.interval = interval
	if latest := time.UnixMilli(p.at).Add(interval); p.at > 0 && latest.Before(p.due) {
		p.due = latest
	}
}

// Record records a heartbeat of a member. If there was none for long, the row is written at
// a time within the interval that differs from that of other groups.
func (p *Heartbeats) Record(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count == p.written && p.due.Before(now) {
		p.due = now.Add(rand.N(p.interval))
	}
	p.count++
	p.at = now.UnixMilli()
}

// Due returns when the row is written next, if there is something to write.
func (p *Heartbeats) Due() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.due
}

// Tick is called often with whether there are members. It reports whether the row is to
// be written: at most once per interval.
func (p *Heartbeats) Tick(now time.Time, members, progress bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if progress {
		p.restarts = 0
	}
	if now.Before(p.due) {
		return false
	}
	p.due = now.Add(p.interval)
	if members {
		p.count++
		p.at = now.UnixMilli()
	}
	return p.count != p.written
}

// Revived says that a heartbeat ended the death of the group.
func (p *Heartbeats) Revived(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restarts++
	p.at = now.UnixMilli()
}

// Restarted says that members came back after all had left; progress, whether those had
// acknowledged anything.
func (p *Heartbeats) Restarted(progress bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if progress {
		p.restarts = 0
	}
	p.restarts++
}

// Fill puts what is known into a row.
func (p *Heartbeats) Fill(r *table.Subscription) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Heartbeats, r.Restarts = p.count, p.restarts
	if p.at > r.HeartbeatAt {
		r.HeartbeatAt = p.at
	}
	r.LastActiveAt = max(r.LastActiveAt, p.at)
}

// Count is the number of heartbeats.
func (p *Heartbeats) Count() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// Settled reports whether the row has all heartbeats.
func (p *Heartbeats) Settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count == p.written
}

// Stored says that the row has a number of heartbeats.
func (p *Heartbeats) Stored(count int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written = max(p.written, count)
}
