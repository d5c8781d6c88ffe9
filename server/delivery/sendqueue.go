package delivery

import (
	"sync"
	"time"

	"github.com/parley-chat/parley/server/delivery/frame"
)

// QueueLimits bound the send queue of a stream.
type QueueLimits struct {
	Frames       int           // waiting to be sent
	Bytes        int           // and their size
	Unacked      int           // sent and not acknowledged, once the client acknowledges
	UnackedBytes int           // and their size
	Lease        time.Duration // longest time without an Ack while something is unacknowledged
}

// sendQueue holds what one stream has yet to send, and what its client has yet to acknowledge.
//
// It owns positions, the bounds of the queue, and the lease that acknowledgements renew. It starts no
// goroutine and is safe for concurrent use by many goroutines, of which one takes. A frame that passes
// through it costs no memory.
type sendQueue struct {
	limits *QueueLimits
	ready  chan struct{}

	mu      sync.Mutex
	queue   ring[*frame.Frame]
	bytes   int            // size of queue
	taken   []*frame.Frame // what Take returned last, to be used again
	sent    int64
	ended   bool       // nothing can follow what is in queue
	unacked ring[sent] // the last frames sent: up to position sent
	size    int        // of unacked
	leased  bool
	acked   int64
	ackedAt time.Time
}

// maxSentPositions bounds what is remembered for clients that never acknowledge: if one
// begins to, the next message of a chat counts what was sent before as delivered.
const maxSentPositions = 512

// newSendQueue makes an empty queue.
func newSendQueue(limits *QueueLimits) *sendQueue {
	return &sendQueue{limits: limits, ready: make(chan struct{}, 1)}
}

// sent is what is remembered of a frame until it is acknowledged. Its position is
// not: a ring holds the last ones, without a gap.
type sent struct {
	chat     frame.Chat
	sequence int64 // 0: not a message
	size     uint32
}

func (s sent) bytes() int { return int(s.size) }

// Push queues a frame. full reports that there is no room; the frame is not queued then,
// nor after the end. [sendQueue.Signal] wakes the goroutine that takes frames, once all frames
// that belong together are queued: they go out in one response.
func (m *sendQueue) Push(f *frame.Frame) (queued, full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.ended:
		return false, false
	case m.queue.len() >= m.limits.Frames, m.bytes+f.Size() > m.limits.Bytes:
		return false, true
	}
	m.append(f)
	return true, false
}

// Heartbeat queues a heartbeat, which does not count against the bounds, unless something
// is waiting anyway. It is the sign that the stream is idle: memory that is kept for later
// frames is released.
func (m *sendQueue) Heartbeat(f *frame.Frame) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || m.queue.len() > 0 {
		return
	}
	m.queue.release()
	m.unacked.release()
	m.taken = nil
	m.append(f)
	m.Signal()
}

// Close queues the last frame; nil closes without one.
func (m *sendQueue) Close(last *frame.Frame) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return
	}
	if last != nil {
		m.append(last)
		m.Signal()
	}
	m.ended = true
}

func (m *sendQueue) append(f *frame.Frame) {
	m.queue.push(f)
	m.bytes += f.Size()
}

// Signal wakes the goroutine that takes frames.
func (m *sendQueue) Signal() {
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// Ready signals that Take has something.
func (m *sendQueue) Ready() <-chan struct{} { return m.ready }

// maxTaken bounds what Take returns at a time: generated clients accept messages
// of 4 MiB.
const maxTaken = 1 << 20

// Take dequeues the next frames, at most max and about 1 MiB, and returns the position
// of the first. ended is true if nothing will follow them. The slice is valid until the
// next call.
func (m *sendQueue) Take(max int) (first int64, frames []*frame.Frame, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.taken) // which would hold them longer than they are needed
	first, frames = m.sent+1, m.taken[:0]
	if n := min(max, m.queue.len()); n > cap(frames) {
		frames = make([]*frame.Frame, 0, (n+leastRing-1)&^(leastRing-1))
	}
	for size := 0; len(frames) < max && m.queue.len() > 0; {
		if size += m.queue.at(0).Size(); len(frames) > 0 && size > maxTaken {
			break
		}
		f := m.queue.pop()
		frames = append(frames, f)
		m.sent++
		m.bytes -= f.Size()
		m.remember(f)
	}
	if m.queue.len() > 0 {
		m.Signal()
	}
	if m.taken = frames; cap(frames) > keptRing {
		m.taken = nil
	}
	return first, frames, m.ended && m.queue.len() == 0
}

func (m *sendQueue) remember(f *frame.Frame) {
	if m.unacked.len() >= maxSentPositions && !m.leased {
		m.size -= m.unacked.pop().bytes()
	}
	s := sent{size: uint32(f.Size())}
	s.chat, s.sequence = f.Message()
	m.unacked.push(s)
	m.size += s.bytes()
}

// Ack records that the client has all positions up to one, and returns the
// sequence of the last message that this covers, by chat. Lower positions than
// before are ignored. Errors: ErrPosition.
func (m *sendQueue) Ack(position int64, now time.Time) (delivered map[string]int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if position > m.sent {
		return nil, ErrPosition
	}
	if position < m.acked {
		return nil, nil
	}
	m.leased, m.acked, m.ackedAt = true, position, now
	for left := m.sent - position; int64(m.unacked.len()) > left; {
		s := m.unacked.pop()
		m.size -= s.bytes()
		if s.sequence == 0 {
			continue
		}
		if delivered == nil {
			delivered = map[string]int64{}
		}
		delivered[s.chat.Value()] = s.sequence
	}
	return delivered, nil
}

// Overdue reports whether a client that acknowledges has left too much
// unacknowledged, or anything for too long.
func (m *sendQueue) Overdue(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.leased || m.unacked.len() == 0 {
		return false
	}
	return m.unacked.len() > m.limits.Unacked || m.size > m.limits.UnackedBytes || now.Sub(m.ackedAt) > m.limits.Lease
}
