package topic

import (
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

// Heartbeats of a consumer. As long as something comes from the server, no call is needed.
const (
	heartbeatTimeout = 5 * time.Second
	maxMissed        = 10
	firstRetry       = time.Second      // pause after a failure, doubled with each
	usualInterval    = 60 * time.Second // until the subscription says otherwise
)

// heartbeatSchedule says when to send a heartbeat, and when to give up. Its owner guards it.
type heartbeatSchedule struct {
	interval time.Duration
	due      time.Time
	missed   int // in a row
}

func newHeartbeatSchedule(now time.Time) *heartbeatSchedule {
	return &heartbeatSchedule{interval: usualInterval, due: now.Add(usualInterval)}
}

// heard takes a sign of life.
func (p *heartbeatSchedule) heard(now time.Time) { p.missed, p.due = 0, now.Add(p.interval) }

// failed takes a heartbeat that was not answered, and reports whether to stop.
func (p *heartbeatSchedule) failed(now time.Time) (stop bool) {
	p.missed++
	p.due = now.Add(wait.Doubled(firstRetry, p.interval, p.missed-1))
	return p.missed >= maxMissed
}
