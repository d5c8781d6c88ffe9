package scenario

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/load/stream"
)

const (
	markers  = 256     // calls at once that mark messages as read
	maxMarks = 1 << 16 // of the callers that wait for one of them
	maxReads = 64      // chats marked by an acknowledgement, the server's own limit
)

// marking tells the server what people have read: with acknowledgements, as the reference
// client does, or with a call for each message.
type marking struct {
	every   time.Duration // least time between two acknowledgements of a stream; 0: calls
	current func() *recorder
	work    chan func(context.Context)
	done    chan struct{}
	workers sync.WaitGroup
}

// reader is a person as a reader of what comes on a stream.
type reader struct {
	*person

	mu       sync.Mutex
	stream   string
	position int64            // of the last frame
	read     map[string]int64 // by chat: what was not reported to the server
	seen     []time.Time      // when these messages came
	busy     bool             // an acknowledgement is under way, or on its way
	last     time.Time        // when one began
}

func newMarking(ctx context.Context, every time.Duration, current func() *recorder) *marking {
	m := &marking{every: every, current: current, work: make(chan func(context.Context), maxMarks),
		done: make(chan struct{})}
	until := context.WithoutCancel(ctx) // close ends them
	for range markers {
		m.workers.Go(func() {
			for {
				select {
				case f := <-m.work:
					f(until)
				case <-m.done:
					return
				}
			}
		})
	}
	return m
}

// close ends the workers, with the call that each is making.
func (m *marking) close() {
	close(m.done)
	m.workers.Wait()
}

func (m *marking) do(f func(context.Context)) {
	select {
	case m.work <- f:
	default:
		m.current().fail(fmt.Errorf("%d marks wait already", maxMarks))
	}
}

// note takes a message that a person has just read.
func (m *marking) note(r *reader, l *stream.Listener, f stream.Frame) {
	m.current().asked.Add(1)
	now, chat := time.Now(), string(f.Chat)
	if m.every == 0 {
		m.do(func(ctx context.Context) { m.mark(ctx, r, chat, f.Sequence, now) })
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream, r.position = l.ID(), f.Position
	if r.read == nil {
		r.read = map[string]int64{}
	}
	r.read[chat] = f.Sequence
	r.seen = append(r.seen, now)
	m.schedule(r)
}

// schedule has a reader, who is locked, acknowledge once it is time again.
func (m *marking) schedule(r *reader) {
	if r.busy || len(r.read) == 0 {
		return
	}
	r.busy = true
	f := func() { m.do(func(ctx context.Context) { m.acknowledge(ctx, r) }) }
	if d := time.Until(r.last.Add(m.every)); d > 0 {
		time.AfterFunc(d, f)
	} else {
		f()
	}
}

// acknowledge tells the server what a reader has read.
func (m *marking) acknowledge(ctx context.Context, r *reader) {
	r.mu.Lock()
	r.last = time.Now()
	reads, seen := r.read, r.seen
	r.read, r.seen = nil, nil
	for chat := range reads {
		if len(reads) <= maxReads {
			break
		}
		if r.read == nil {
			r.read = map[string]int64{}
		}
		r.read[chat] = reads[chat]
		delete(reads, chat)
	}
	if len(r.read) > 0 { // they count once the rest is recorded, too
		r.seen, seen = seen, nil
	}
	request := stream.AckRequest(r.stream, r.position, reads)
	r.mu.Unlock()
	answer, ok := m.call(ctx, r.person, deliveryv1connect.DeliveryServiceAckProcedure, request)
	if ok {
		if err := stream.CheckAck(answer, len(reads)); err != nil {
			m.current().fail(err)
		} else {
			m.recorded(seen...)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = false
	m.schedule(r)
}

// mark tells the server of one message.
func (m *marking) mark(ctx context.Context, r *reader, chat string, sequence int64, seen time.Time) {
	if _, ok := m.call(ctx, r.person, messagev1connect.MessageServiceMarkReadProcedure,
		stream.MarkRequest(chat, sequence)); ok {
		m.recorded(seen)
	}
}

func (m *marking) call(ctx context.Context, p *person, procedure string, request []byte) (answer []byte, ok bool) {
	rec, began := m.current(), time.Now()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	answer, err := p.calls.Call(ctx, p.token, procedure, request)
	if err != nil {
		rec.fail(err)
		return nil, false
	}
	rec.marks.Add(time.Since(began))
	return answer, true
}

func (m *marking) recorded(seen ...time.Time) {
	rec := m.current()
	for _, at := range seen {
		rec.recorded.Add(time.Since(at))
	}
}
