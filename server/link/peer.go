package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"connectrpc.com/connect"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/gen/parley/link/v1/linkv1connect"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/delivery/linkseq"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/routing"
)

const (
	maxEnvelope  = 1 << 20 // bytes of events in one, unless one change alone has more
	attempts     = 3       // to send an envelope; after them the receiver sees a gap
	firstRetry   = 50 * time.Millisecond
	maxRetry     = 2 * time.Second
	closeTimeout = 2 * time.Second
)

// peer is the link to one server. Its goroutine alone calls Next, so that envelopes
// are sent in the order of their numbers.
type peer struct {
	mesh        *Mesh
	server      routing.Server
	rpc         linkv1connect.LinkServiceClient
	ctx         context.Context
	stop        context.CancelFunc
	wake        chan struct{}
	firstAnswer chan struct{} // closed with it
	opened      time.Time

	mu     sync.Mutex
	queue  []item
	bytes  int
	gap    bool      // something was dropped that nothing repairs
	seen   time.Time // the last answer, or when the link was opened
	warned bool
	badKey bool      // the last call was refused for its credential
	avoid  time.Time // until when no message is forwarded there
}

func (m *Mesh) newPeer(s routing.Server) *peer {
	p := &peer{
		mesh: m, server: s, wake: make(chan struct{}, 1), firstAnswer: make(chan struct{}), opened: m.cfg.Clock(),
		seen: m.cfg.Clock(),
		rpc: linkv1connect.NewLinkServiceClient(m.client, m.url(s.Addr), connect.WithInterceptors(&authenticator{m, s.ID}),
			connect.WithReadMaxBytes(maxAnswer)),
	}
	p.ctx, p.stop = context.WithCancel(m.live)
	return p
}

// connected reports whether the server has ever answered.
func (p *peer) connected() bool {
	select {
	case <-p.firstAnswer:
		return true
	default:
		return false
	}
}

// refused reports whether the server has another key.
func (p *peer) refused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.badKey
}

// awaitConnected waits for the server's first answer.
func (p *peer) awaitConnected(ctx context.Context, d time.Duration) bool {
	if p.connected() || d <= 0 {
		return p.connected()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.firstAnswer:
		return true
	case <-ctx.Done():
	case <-p.ctx.Done():
	case <-t.C:
	}
	return false
}

// lastSeen is when the server last answered, or when the link was opened.
func (p *peer) lastSeen() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// enqueue queues an item. If the queue is full it drops the item.
func (p *peer) enqueue(it item) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) >= p.mesh.cfg.QueueItems || (p.bytes+it.size > p.mesh.cfg.QueueBytes && len(p.queue) > 0) {
		if it.mustKeep {
			p.gap = true
			p.mesh.counters.lost.Add(1)
		} else {
			p.mesh.counters.dropped.Add(1)
		}
		return
	}
	p.queue = append(p.queue, it)
	p.bytes += it.size
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// dequeue removes the items of the next envelope, and reports whether something was
// dropped before them.
func (p *peer) dequeue() (list []item, gap bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, size, receipts := 0, 0, 0
	for n < len(p.queue) {
		it := p.queue[n]
		if it.receipt != nil {
			receipts++
		}
		if n > 0 && (size+it.size > maxEnvelope || receipts > linkseq.MaxReceipts || n+1-receipts > linkseq.MaxDeliveries) {
			break
		}
		size += it.size
		n++
	}
	list, gap = p.queue[:n:n], p.gap
	p.queue, p.bytes, p.gap = p.queue[n:], p.bytes-size, false
	if len(p.queue) == 0 {
		p.queue = nil
	}
	return list, gap
}

// run sends what is queued until the mesh or the link is closed.
func (p *peer) run() {
	defer p.stop()
	hello := p.mesh.sender.Open(p.server.ID)
	for pause := firstRetry; p.send(p.ctx, hello, nil) != nil; pause = min(2*pause, maxRetry) {
		if wait.For(p.ctx, jittered(pause)) != nil {
			return
		}
		// The epoch may have changed meanwhile.
		var err error
		if hello, err = p.mesh.sender.Keepalive(p.server.ID); err != nil {
			return
		}
	}
	close(p.firstAnswer)
	keepalive := time.NewTicker(p.mesh.cfg.Keepalive)
	defer keepalive.Stop()
	for p.ctx.Err() == nil {
		list, gap := p.dequeue()
		if gap {
			// A number that is never sent: the receiver detects the gap.
			_, _ = p.mesh.sender.Next(p.server.ID, []delivery.Delivery{{}}, nil)
		}
		if len(list) > 0 {
			p.deliver(p.ctx, list)
			continue
		}
		select {
		case <-p.ctx.Done():
		case <-p.wake:
		case <-keepalive.C:
			if e, err := p.mesh.sender.Keepalive(p.server.ID); err == nil {
				_ = p.send(p.ctx, e, nil) // the next one follows soon
			}
		}
	}
	p.close()
}

// close sends what is queued and then the end of the link, unless the server has
// departed.
func (p *peer) close() {
	if p.mesh.live.Err() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), closeTimeout)
	defer cancel()
	for ctx.Err() == nil {
		list, gap := p.dequeue()
		if gap {
			_, _ = p.mesh.sender.Next(p.server.ID, []delivery.Delivery{{}}, nil)
		}
		if len(list) == 0 {
			break
		}
		p.deliver(ctx, list)
	}
	if e, err := p.mesh.sender.Close(p.server.ID); err == nil {
		_ = p.send(ctx, e, nil)
	}
}

// deliver sends items in the next envelope. Once it is numbered it is sent, or a gap.
func (p *peer) deliver(ctx context.Context, list []item) {
	var deliveries []delivery.Delivery
	var receipts []linkseq.Receipt
	var wire []*linkv1.Delivery
	for _, it := range list {
		if it.receipt != nil {
			receipts = append(receipts, *it.receipt)
		} else {
			deliveries, wire = append(deliveries, it.delivery), append(wire, it.wire)
		}
	}
	if p.ctx.Err() != nil && p.mesh.live.Err() == nil {
		return // the server has departed, and its streams before it
	}
	e, err := p.mesh.sender.Next(p.server.ID, deliveries, receipts)
	if err != nil {
		p.mesh.counters.lost.Add(1)
		return // the link was closed: the next one starts with a new epoch
	}
	pause := firstRetry
	for range attempts {
		if err = p.send(ctx, e, wire); err == nil {
			return
		}
		if connect.CodeOf(err) == connect.CodeFailedPrecondition || ctx.Err() != nil ||
			wait.For(p.ctx, jittered(pause)) != nil {
			break
		}
		pause = min(2*pause, maxRetry)
	}
	if p.ctx.Err() == nil || p.mesh.live.Err() != nil {
		p.mesh.counters.lost.Add(1)
	}
}

// send sends an envelope once.
func (p *peer) send(ctx context.Context, e linkseq.Envelope, wire []*linkv1.Delivery) error {
	ctx, cancel := context.WithTimeout(ctx, p.mesh.cfg.Call)
	defer cancel()
	_, err := p.rpc.Send(ctx, encodeEnvelope(e, wire))
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return err // the link was closed; the call did not fail
		}
		p.mesh.counters.failed.Add(1)
		p.badKey = isOtherKey(err)
		if !p.warned {
			p.warned = true
			p.mesh.cfg.Logger.Warn("link: a server does not accept envelopes; its streams resynchronise when it does", "server",
				p.server.ID, "address", p.server.Addr, "error", err)
		}
		return err
	}
	p.mesh.counters.sent.Add(1)
	p.badKey = false
	p.seen = p.mesh.cfg.Clock()
	if p.warned {
		p.warned = false
		p.mesh.cfg.Logger.Info("link: the server accepts envelopes again", "server", p.server.ID)
	}
	return nil
}

// jittered is a time around d, so that links that failed together do not retry together.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d) }
