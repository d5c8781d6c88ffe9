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
	numbers "github.com/parley-chat/parley/server/delivery/link"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/wait"
)

const (
	maxEnvelope = 1 << 20 // bytes of events in one, unless one change alone has more
	attempts    = 3       // at sending an envelope; what is given up is a gap
	firstRetry  = 50 * time.Millisecond
	maxRetry    = 2 * time.Second
	goodbyeTime = 2 * time.Second
)

// peer is the link to one server. Its goroutine alone calls Next, so that envelopes
// leave in the order of their numbers.
type peer struct {
	mesh   *Mesh
	server routing.Server
	rpc    linkv1connect.LinkServiceClient
	ctx    context.Context
	stop   context.CancelFunc
	wake   chan struct{}
	hello  chan struct{} // closed with the first answer
	made   time.Time

	mu     sync.Mutex
	queue  []item
	bytes  int
	gap    bool // something was left out of the queue that nothing repairs
	last   time.Time
	warned bool
	badKey bool // the last call was refused for its proof
}

func (m *Mesh) newPeer(s routing.Server) *peer {
	p := &peer{
		mesh: m, server: s, wake: make(chan struct{}, 1), hello: make(chan struct{}), made: m.cfg.Clock(), last: m.cfg.Clock(),
		rpc: linkv1connect.NewLinkServiceClient(m.client, m.url(s.Addr), connect.WithInterceptors(&prove{m, s.ID}), connect.WithReadMaxBytes(maxAnswer)),
	}
	p.ctx, p.stop = context.WithCancel(m.live)
	return p
}

// met reports whether the server has ever answered.
func (p *peer) met() bool {
	select {
	case <-p.hello:
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

// await waits for the server's first answer.
func (p *peer) await(ctx context.Context, d time.Duration) bool {
	if p.met() || d <= 0 {
		return p.met()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.hello:
		return true
	case <-ctx.Done():
	case <-p.ctx.Done():
	case <-t.C:
	}
	return false
}

// answered is when the server last did, or when the link was made.
func (p *peer) answered() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// enqueue has an item sent. One that finds no room is left out.
func (p *peer) enqueue(it item) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) >= p.mesh.cfg.QueueItems || (p.bytes+it.size > p.mesh.cfg.QueueBytes && len(p.queue) > 0) {
		if it.keep {
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

// take returns what goes into the next envelope, and whether something was left out
// before it.
func (p *peer) take() (list []item, gap bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, size, receipts := 0, 0, 0
	for n < len(p.queue) {
		it := p.queue[n]
		if it.receipt != nil {
			receipts++
		}
		if n > 0 && (size+it.size > maxEnvelope || receipts > numbers.MaxReceipts || n+1-receipts > numbers.MaxDeliveries) {
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

// run keeps the link until the mesh or the link ends.
func (p *peer) run() {
	defer p.stop()
	hello := p.mesh.sender.Open(p.server.ID)
	for pause := firstRetry; p.send(p.ctx, hello, nil) != nil; pause = min(2*pause, maxRetry) {
		if wait.For(p.ctx, jittered(pause)) != nil {
			return
		}
		// What was left out meanwhile may have begun another epoch.
		var err error
		if hello, err = p.mesh.sender.Keepalive(p.server.ID); err != nil {
			return
		}
	}
	close(p.hello)
	beat := time.NewTicker(p.mesh.cfg.Keepalive)
	defer beat.Stop()
	for p.ctx.Err() == nil {
		list, gap := p.take()
		if gap {
			// A number that no envelope has: the receiver cannot but notice.
			_, _ = p.mesh.sender.Next(p.server.ID, []delivery.Delivery{{}}, nil)
		}
		if len(list) > 0 {
			p.deliver(p.ctx, list)
			continue
		}
		select {
		case <-p.ctx.Done():
		case <-p.wake:
		case <-beat.C:
			if e, err := p.mesh.sender.Keepalive(p.server.ID); err == nil {
				_ = p.send(p.ctx, e, nil) // the next one will do
			}
		}
	}
	p.goodbye()
}

// goodbye sends what is waiting, and that nothing follows. A server that is gone is
// told nothing.
func (p *peer) goodbye() {
	if p.mesh.live.Err() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), goodbyeTime)
	defer cancel()
	for ctx.Err() == nil {
		list, gap := p.take()
		if gap {
			_, _ = p.mesh.sender.Next(p.server.ID, []delivery.Delivery{{}}, nil)
		}
		if len(list) == 0 {
			break
		}
		p.deliver(ctx, list)
	}
	if e, err := p.mesh.sender.Bye(p.server.ID); err == nil {
		_ = p.send(ctx, e, nil)
	}
}

// deliver sends items in the next envelope. Once it is numbered it is sent or a gap.
func (p *peer) deliver(ctx context.Context, list []item) {
	var deliveries []delivery.Delivery
	var receipts []numbers.Receipt
	var wire []*linkv1.Delivery
	for _, it := range list {
		if it.receipt != nil {
			receipts = append(receipts, *it.receipt)
		} else {
			deliveries, wire = append(deliveries, it.delivery), append(wire, it.wire)
		}
	}
	if p.ctx.Err() != nil && p.mesh.live.Err() == nil {
		return // the server has left, and its streams before it
	}
	e, err := p.mesh.sender.Next(p.server.ID, deliveries, receipts)
	if err != nil {
		p.mesh.counters.lost.Add(1)
		return // the link was closed: its next one begins with a new epoch
	}
	pause := firstRetry
	for range attempts {
		if err = p.send(ctx, e, wire); err == nil {
			return
		}
		if connect.CodeOf(err) == connect.CodeFailedPrecondition || ctx.Err() != nil || wait.For(p.ctx, jittered(pause)) != nil {
			break
		}
		pause = min(2*pause, maxRetry)
	}
	if p.ctx.Err() == nil || p.mesh.live.Err() != nil {
		p.mesh.counters.lost.Add(1)
	}
}

// send sends an envelope once.
func (p *peer) send(ctx context.Context, e numbers.Envelope, wire []*linkv1.Delivery) error {
	ctx, cancel := context.WithTimeout(ctx, p.mesh.cfg.Call)
	defer cancel()
	_, err := p.rpc.Send(ctx, encodeEnvelope(e, wire))
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return err // the link has ended, not the call failed
		}
		p.mesh.counters.failed.Add(1)
		p.badKey = isOtherKey(err)
		if !p.warned {
			p.warned = true
			p.mesh.cfg.Logger.Warn("link: a server does not take envelopes; its streams synchronise when it does", "server", p.server.ID, "address", p.server.Addr, "error", err)
		}
		return err
	}
	p.mesh.counters.sent.Add(1)
	p.badKey = false
	p.last = p.mesh.cfg.Clock()
	if p.warned {
		p.warned = false
		p.mesh.cfg.Logger.Info("link: the server takes envelopes again", "server", p.server.ID)
	}
	return nil
}

// jittered is a time around d, so that links that failed together do not retry together.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d) }
