package serving

import (
	"math"
	"sync"
	"time"
)

// Meter measures how fast a group is, over about the last minute, from occasional samples.
// How long a message is under way it has from Little's law: as many as are under way at a
// time, by how many are answered a second. So nothing is recorded for a single message.
type Meter struct {
	mu                 sync.Mutex
	at                 time.Time // of the last sample
	processed, answers int64     // at it
	expired            int64     // at it
	weight             float64   // of all samples, below 1 in the beginning
	rate, speed, away  float64   // averages, times weight: processed and answered a second; under way
}

// meterMemory is how long a Meter remembers, about.
const meterMemory = time.Minute

// Sample is called now and then with what a group has done since it began, how many deliveries were
// answered, how many messages its members have, and how many leases have ended since the process
// began. A message whose lease ends was not worked on, so the time that it was under way is taken
// off again.
func (m *Meter) Sample(now time.Time, processed, answers, inFlight, expired int64, lease time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	took := now.Sub(m.at).Seconds()
	if !m.at.IsZero() && took > 0 && processed >= m.processed {
		idle := float64(expired-m.expired) * lease.Seconds() / took
		m.add(took, float64(processed-m.processed)/took, float64(answers-m.answers)/took, float64(inFlight)-idle)
	}
	m.at, m.processed, m.answers, m.expired = now, processed, answers, expired
}

// Rest is Sample for a group without members, which has done nothing since the last one.
func (m *Meter) Rest(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if took := now.Sub(m.at).Seconds(); m.weight > 0 && took > 0 {
		m.add(took, 0, 0, 0)
		m.at = now
	}
}

func (m *Meter) add(seconds, rate, speed, away float64) {
	keep := math.Exp(-seconds / meterMemory.Seconds())
	m.weight = m.weight*keep + 1 - keep
	m.rate = m.rate*keep + rate*(1-keep)
	m.speed = m.speed*keep + speed*(1-keep)
	m.away = m.away*keep + away*(1-keep)
}

// least is a rate that is none.
const least = 1e-6

// Speed returns how many messages the group gets done a second, and how long a member has
// one on average; 0 if that is not known.
func (m *Meter) Speed() (perSecond float64, processing time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.weight == 0 {
		return 0, 0
	}
	if m.speed > least {
		processing = time.Duration(max(0, m.away) / m.speed * float64(time.Second))
	}
	if perSecond = m.rate / m.weight; perSecond < least {
		perSecond = 0
	}
	return perSecond, processing
}
