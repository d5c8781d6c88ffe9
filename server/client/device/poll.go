package device

import "time"

// Some proxies hold each response back until it ends, although the server asks them not to. Behind one, streams
// open and bring nothing, while calls work. Then the machine polls: Sync with the token shows which chats
// have changed, and what the stream would have brought is read as after any gap.
const (
	helloTime    = 15 * time.Second // within which a stream must begin: its hello is sent at once
	shortLife    = 5 * time.Second  // a stream that ended sooner was refused, not held back
	maxMute      = 2                // streams in a row that brought nothing
	firstPoll    = 2 * time.Second
	lastPoll     = 12 * time.Second // and a quarter more
	streamsAgain = 5 * time.Minute  // between two streams that are tried while the machine polls
)

// polling is the state of polling.
type polling struct {
	mute  int // streams in a row that brought nothing
	on    bool
	works bool          // a poll was answered
	up    bool          // so was the last: the device is connected in this way
	again bool          // poll again at once: the one under way may be older than what the device has changed
	wait  time.Duration // between the last two; 0 before the first
	at    time.Time     // of the next poll
}

// silence is how long the stream may bring nothing.
func (m *Machine) silence() time.Duration {
	if m.stream.streamID == "" {
		return min(helloTime, m.cfg.Silence)
	}
	return m.cfg.Silence
}

// retry drops the stream; the next one is opened after a wait. Polls begin if streams open and bring nothing.
func (m *Machine) retry(now time.Time, wait time.Duration) {
	s, p := &m.stream, &m.poll
	if s.id != 0 && s.streamID == "" && now.Sub(s.heard) >= min(shortLife, m.cfg.Silence) {
		p.mute++
	}
	if !p.on && p.mute >= maxMute {
		*p = polling{on: true, at: now}
		m.sync.need = m.sync.need || m.session.Token == ""
	}
	*s = stream{tries: s.tries + 1}
	m.connectAfter(now, wait)
}

// connectAfter has the next stream opened after a wait.
func (m *Machine) connectAfter(now time.Time, wait time.Duration) {
	switch p := &m.poll; {
	case p.up:
		wait = max(wait, streamsAgain)
	case p.on:
		wait = max(wait, lastBackoff)
	}
	m.stream.connectAt = now.Add(wait)
}

// polled plans the next poll after one that succeeded, sooner if it brought something.
func (p *polling) polled(m *Machine, news bool) {
	if !p.on {
		return
	}
	now := m.cfg.Clock()
	if !p.works { // perhaps the network was away, and a stream begins now
		p.works = true
		m.stream.connectAt = now
	}
	if !p.up {
		p.up = true
		m.events = append(m.events, Event{Connected: true, Polling: true})
	}
	if p.wait = min(max(p.wait*3/2, firstPoll), lastPoll); news {
		p.wait = firstPoll
	}
	// A quarter sooner or later, so that clients behind one proxy spread.
	p.at = now.Add(time.Duration((0.75 + m.cfg.Rand()/2) * float64(p.wait)))
	if p.again {
		p.hurry(m)
	}
}

// failed ends polls that never worked: the network is away, and with it the streams. While others fail, streams are
// tried more often.
func (p *polling) failed(m *Machine) {
	if !p.on {
		return
	}
	now := m.cfg.Clock()
	if p.up = false; !p.works {
		*p = polling{}
		m.connectAfter(now, m.backoff(m.stream.tries))
	} else if soon := now.Add(lastBackoff); m.stream.connectAt.After(soon) {
		m.stream.connectAt = soon
	}
}

// hurry has the next poll made at once, because the device has changed something.
func (p *polling) hurry(m *Machine) {
	if p.on {
		p.wait, p.at, p.again = 0, m.cfg.Clock(), m.sync.call != 0
	}
}
