package live

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/catalog"
)

// Pulse is what is known of a group's heartbeats and not all stored yet.
type Pulse struct {
	mu       sync.Mutex
	beats    int64 // in the row, and since
	stored   int64 // beats that the row has
	at       int64 // of the last one, unix ms
	restarts int64
	due      time.Time // when members that are attached count as heard from, and the row is written
	interval time.Duration
}

// Init begins at a time within the interval that is not that of other groups.
func (p *Pulse) Init(sub *catalog.Subscription, now time.Time) {
	p.interval = sub.Config.GetHeartbeatInterval().AsDuration()
	p.beats, p.stored, p.at, p.restarts = sub.Row.Heartbeats, sub.Row.Heartbeats, sub.Row.HeartbeatAt, sub.Row.Restarts
	p.due = now.Add(rand.N(p.interval))
}

// Beat says that a member was heard from. If nobody was for long, the row is written at a
// time within the interval that is not that of other groups.
func (p *Pulse) Beat(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.beats == p.stored && p.due.Before(now) {
		p.due = now.Add(rand.N(p.interval))
	}
	p.beats++
	p.at = now.UnixMilli()
}

// Due returns when the row is written next, if there is something to write.
func (p *Pulse) Due() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.due
}

// Tick is called often with whether there are members. It reports whether the row is to
// be written: at most once per interval.
func (p *Pulse) Tick(now time.Time, members, progress bool) bool {
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
		p.beats++
		p.at = now.UnixMilli()
	}
	return p.beats != p.stored
}

// Revived says that a heartbeat ended the death of the group.
func (p *Pulse) Revived(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restarts++
	p.at = now.UnixMilli()
}

// Restarted says that members came back after all had left; progress, whether those had
// acknowledged anything.
func (p *Pulse) Restarted(progress bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if progress {
		p.restarts = 0
	}
	p.restarts++
}

// Record puts what is known into a row.
func (p *Pulse) Record(r *table.Subscription) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Heartbeats, r.Restarts = p.beats, p.restarts
	if p.at > r.HeartbeatAt {
		r.HeartbeatAt = p.at
	}
	r.LastActiveAt = max(r.LastActiveAt, p.at)
}

// Count is the number of heartbeats.
func (p *Pulse) Count() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beats
}

// Settled reports whether the row has all heartbeats.
func (p *Pulse) Settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beats == p.stored
}

// Wrote says that the row has a number of heartbeats.
func (p *Pulse) Wrote(beats int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stored = max(p.stored, beats)
}
