package link

import (
	"context"
	"hash/maphash"
	"slices"
	"time"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/delivery/linkseq"
	"github.com/parley-chat/parley/server/routing"
)

// Live changes are routed by a few workers. Each chat has one worker, so that its changes
// keep their order; one lookup serves all the changes that a worker finds queued.
const (
	workers     = 8
	workerQueue = 4096
	workerBatch = 64
	lookupTime  = time.Second
	// connectTime is how long repairs wait, at most, for the first answer of a new server.
	connectTime = 3 * time.Second
)

var workerSeed = maphash.MakeSeed()

// job is a change or a receipt to be routed.
type job struct {
	delivery delivery.Delivery
	receipt  *linkseq.Receipt
}

func (m *Mesh) worker(chatID string) chan<- job {
	return m.workers[maphash.String(workerSeed, chatID)%workers]
}

func (m *Mesh) startWorkers() {
	for range workers {
		c := make(chan job, workerQueue)
		m.workers = append(m.workers, c)
		m.routing.Go(func() { m.runWorker(c) })
	}
}

func (m *Mesh) runWorker(c <-chan job) {
	for {
		var list []job
		select {
		case <-m.closing:
			if len(c) == 0 {
				return
			}
			list = append(list, <-c)
		case j := <-c:
			list = append(list, j)
		}
		for len(list) < workerBatch {
			select {
			case j := <-c:
				list = append(list, j)
				continue
			default:
			}
			break
		}
		m.route(list)
	}
}

// route sends jobs to their servers.
func (m *Mesh) route(list []job) {
	ctx, cancel := context.WithTimeout(m.live, m.cfg.Call)
	defer cancel()
	users := make([][]string, len(list))
	for i, j := range list {
		if j.receipt != nil {
			users[i] = []string{j.receipt.UserID}
			continue
		}
		members, err := m.cfg.Recipients.Members(ctx, j.delivery.ChatID, j.delivery.MembershipVersion)
		if err != nil {
			m.unroutable(j, err)
			continue
		}
		users[i] = audience(members, j.delivery)
	}
	for len(list) > 0 {
		n, all := 0, []string(nil)
		for n < len(list) && (n == 0 || len(all)+len(users[n]) <= routing.MaxLookup) {
			all = append(all, users[n]...)
			n++
		}
		slices.Sort(all)
		lookup, done := context.WithTimeout(ctx, lookupTime)
		where, err := m.cfg.Table.Lookup(lookup, slices.Compact(all))
		done()
		for i, j := range list[:n] {
			switch {
			case users[i] == nil: // reported as unroutable above
			case err != nil:
				m.unroutable(j, err)
			case j.receipt != nil:
				for _, p := range m.servers(where, users[i]) {
					p.enqueue(item{receipt: j.receipt, mustKeep: true})
				}
			default:
				if peers := m.servers(where, users[i]); len(peers) > 0 {
					it, err := newItem(j.delivery, false)
					if err != nil {
						m.unroutable(j, err)
						continue
					}
					for _, p := range peers {
						p.enqueue(it)
					}
				}
			}
		}
		list, users = list[n:], users[n:]
	}
}

// unroutable drops a job.
func (m *Mesh) unroutable(j job, err error) {
	if m.live.Err() != nil {
		return
	}
	if j.receipt != nil {
		m.bumpEpochs()
		return
	}
	if m.counters.unrouted.Add(1)%1000 == 1 {
		m.cfg.Logger.Warn("link: a live change was dropped; the durable path repairs it", "error", err)
	}
}

// audience is the users that a change concerns: the members, and those whom it removed.
func audience(members []string, d delivery.Delivery) []string {
	return append(slices.Clone(members), d.Targets...)
}

// servers returns the links to the servers of users, without duplicates.
func (m *Mesh) servers(where map[string][]routing.Server, users []string) []*peer {
	seen := map[string]bool{}
	var out []*peer
	for _, u := range users {
		for _, s := range where[u] {
			if seen[s.ID] {
				continue
			}
			seen[s.ID] = true
			if p := m.peer(s); p != nil {
				out = append(out, p)
			}
		}
	}
	return out
}

func (m *Mesh) repair(ctx context.Context, d delivery.Delivery, members []string) error {
	lookup, done := context.WithTimeout(ctx, lookupTime)
	defer done()
	users := audience(members, d)
	where := map[string][]routing.Server{}
	for part := range slices.Chunk(users, routing.MaxLookup) {
		found, err := m.cfg.Table.Lookup(lookup, part)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			m.bumpEpochs()
			return nil
		}
		for u, list := range found {
			where[u] = list
		}
	}
	peers := m.servers(where, users)
	if len(peers) == 0 {
		return nil
	}
	it, err := newItem(d, true)
	if err != nil {
		return err
	}
	for _, p := range peers {
		p.enqueue(it)
	}
	for _, p := range peers {
		// A new server may not know yet that this process is listed: if this process
		// crashed now, the server would not miss the change. A server that stays
		// unreachable learns it from the table; waiting longer gains nothing.
		if !p.awaitConnected(ctx, connectTime-m.cfg.Clock().Sub(p.opened)) && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// item is a change or a receipt waiting for a link.
type item struct {
	delivery delivery.Delivery
	wire     *linkv1.Delivery // encoded once for all links
	size     int
	receipt  *linkseq.Receipt
	mustKeep bool // nothing repairs it
}

func newItem(d delivery.Delivery, mustKeep bool) (item, error) {
	wire, size, err := encodeDelivery(d)
	return item{delivery: d, wire: wire, size: size, mustKeep: mustKeep}, err
}
