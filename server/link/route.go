package link

import (
	"context"
	"hash/maphash"
	"slices"
	"time"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/server/delivery"
	numbers "github.com/parley-chat/parley/server/delivery/link"
	"github.com/parley-chat/parley/server/routing"
)

// The way of live changes: lanes of chats, each worked on by one goroutine, so that a
// chat's changes keep their order, and one lookup serves all that have gathered.
const (
	lanes      = 8
	laneQueue  = 4096
	laneBatch  = 64
	lookupTime = time.Second
	// meetTime is how long repairs wait, at most, for the first answer of a server that
	// has just come.
	meetTime = 3 * time.Second
)

var laneSeed = maphash.MakeSeed()

// job is a change or a receipt on its way to a lane.
type job struct {
	delivery delivery.Delivery
	receipt  *numbers.Receipt
}

func (m *Mesh) lane(chatID string) chan<- job {
	return m.lanes[maphash.String(laneSeed, chatID)%lanes]
}

func (m *Mesh) startLanes() {
	for range lanes {
		c := make(chan job, laneQueue)
		m.lanes = append(m.lanes, c)
		m.routing.Go(func() { m.runLane(c) })
	}
}

func (m *Mesh) runLane(c <-chan job) {
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
		for len(list) < laneBatch {
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
		members, err := m.cfg.Recipients.Of(ctx, j.delivery.ChatID, j.delivery.MembershipVersion)
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
		look, done := context.WithTimeout(ctx, lookupTime)
		where, err := m.cfg.Table.Lookup(look, slices.Compact(all))
		done()
		for i, j := range list[:n] {
			switch {
			case users[i] == nil: // cannot be routed, which is noted
			case err != nil:
				m.unroutable(j, err)
			case j.receipt != nil:
				for _, p := range m.servers(where, users[i]) {
					p.enqueue(item{receipt: j.receipt, keep: true})
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

// unroutable leaves a job out.
func (m *Mesh) unroutable(j job, err error) {
	if m.live.Err() != nil {
		return
	}
	if j.receipt != nil {
		m.skip()
		return
	}
	if m.counters.unrouted.Add(1)%1000 == 1 {
		m.cfg.Logger.Warn("link: a live change was left out, the durable path will bring it", "error", err)
	}
}

// audience is who is concerned by a change: the members, and those whom it removed.
func audience(members []string, d delivery.Delivery) []string {
	return append(slices.Clone(members), d.Targets...)
}

// servers returns the links to the servers of users, each once.
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
	look, done := context.WithTimeout(ctx, lookupTime)
	defer done()
	users := audience(members, d)
	where := map[string][]routing.Server{}
	for part := range slices.Chunk(users, routing.MaxLookup) {
		found, err := m.cfg.Table.Lookup(look, part)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			m.skip()
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
		// One that has just come may not have seen yet that this process is listed: if
		// this process ended now, nobody would know that the change was on its way. A
		// server that cannot be reached for longer sees it, and holds nobody up.
		if !p.await(ctx, meetTime-m.cfg.Clock().Sub(p.made)) && ctx.Err() != nil {
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
	receipt  *numbers.Receipt
	keep     bool // nothing repairs it
}

func newItem(d delivery.Delivery, keep bool) (item, error) {
	wire, size, err := encodeDelivery(d)
	return item{delivery: d, wire: wire, size: size, keep: keep}, err
}
