package explorer

import (
	"maps"
	"slices"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/delivery/linkseq"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// keepaliveEvery is the time that one round of keepalives stands for; links have a
// clock of their own here, or every leap of the world's would silence all senders.
const keepaliveEvery = 5 * time.Second

type wireKey struct{ from, to *process }

// wire carries the envelopes of one link, in order.
type wire struct {
	to    *process
	queue []linkseq.Envelope
}

// linkHub is the hub as a receiver sees it.
type linkHub struct{ p *process }

// Deliver implements linkseq.Hub.
func (h linkHub) Deliver(d delivery.Delivery) {
	w := h.p.w
	if w.trace != nil {
		w.tracef("%s hears of %s@%d with %d events", h.p.name, short(d.ChatID), d.Version, len(d.Events))
	}
	if w.bug.deliver != nil {
		w.bug.deliver(w, &d)
	}
	h.p.hub.Deliver(d)
}

// Receipt implements linkseq.Hub.
func (h linkHub) Receipt(user, chatID string, state *chatv1.MemberState) {
	h.p.hub.Receipt(user, chatID, state)
}

// InvalidateAll implements linkseq.Hub.
func (h linkHub) InvalidateAll() {
	if h.p.w.trace != nil {
		h.p.w.tracef("%s marks its streams", h.p.name)
	}
	if !h.p.w.bug.noDirty {
		h.p.hub.InvalidateAll()
	}
}

// senders are the processes that have something to send, in a fixed order.
func (s *spine) senders() []*process {
	all := slices.Clone(s.w.processes)
	for _, f := range s.fanouts {
		all = append(all, f.p)
	}
	return all
}

// join makes a new process known to all others and them to it, before it serves.
func (s *spine) join(p *process) {
	p.leased = true
	p.sender = linkseq.NewSender(p.name, s.w.generation)
	var err error
	p.receiver, err = linkseq.NewReceiver(linkseq.ReceiverConfig{Generation: s.w.generation, Hub: linkHub{p}})
	if err != nil {
		s.w.failf("receiver: %v", err)
	}
	for _, from := range s.senders() {
		if from != p {
			s.hello(from, p)
		}
	}
	s.greet(p)
	s.discover(p)
}

// discover gives a process the list of all processes that send.
func (s *spine) discover(p *process) {
	if s.w.bug.noList {
		return
	}
	var listed []string
	for _, from := range s.senders() {
		if from != p {
			listed = append(listed, from.name)
		}
	}
	p.receiver.Expect(listed, s.linkNow)
}

// greet opens a sender's links to all processes.
func (s *spine) greet(from *process) {
	for _, to := range s.w.processes {
		if to != from {
			s.hello(from, to)
		}
	}
}

func (s *spine) hello(from, to *process) {
	if s.unmet > 0 && s.w.trouble(s.unmet) {
		if s.w.trace != nil {
			s.w.tracef("%s does not reach %s, and continues", from.name, to.name)
		}
		from.sender.Open(to.name)
		s.discover(to) // which it has been given the time for
		return
	}
	if err := to.receiver.Receive(from.sender.Open(to.name), s.linkNow); err != nil {
		s.w.failf("%s greets %s: %v", from.name, to.name, err)
	}
}

// leave takes a dead process off the network. What it had sent may still arrive.
func (s *spine) leave(p *process) {
	for _, from := range s.senders() {
		from.sender.Drop(p.name)
	}
}

// put has an envelope go over a wire.
func (s *spine) put(from, to *process, e linkseq.Envelope) {
	w, k := s.w, wireKey{from, to}
	l := s.wires[k]
	if l == nil {
		l = &wire{to: to}
		s.wires[k] = l
	}
	l.queue = append(l.queue, e)
	w.later("link", func() bool {
		if len(l.queue) == 0 {
			return false
		}
		e := l.queue[0]
		l.queue = l.queue[1:]
		if l.to.dead || (from.dead && w.choose.chance(500)) || w.trouble(s.lossy) {
			if w.trace != nil {
				w.tracef("lost on the way to %s: %s", l.to.name, &e)
			}
			return false
		}
		s.receive(l.to, e)
		if w.trouble(50) { // once more, late
			w.later("late", func() bool { s.receive(l.to, e); return false })
		}
		return false
	})
}

func (s *spine) receive(to *process, e linkseq.Envelope) {
	if to.dead {
		return
	}
	w := s.w
	if w.trace != nil {
		w.tracef("%s receives %s", to.name, &e)
	}
	if w.bug.envelope != nil {
		w.bug.envelope(w, to, &e)
	}
	if err := to.receiver.Receive(e, s.linkNow); err != nil && e.Generation == w.generation {
		w.failf("%s receives %s: %v", to.name, &e, err)
	}
}

// notify sends a delivery to the processes that have streams for it. Who that is,
// cannot be found out now and then: the live path leaves it to the fanout, which
// has nobody to leave it to.
func (s *spine) notify(from *process, d delivery.Delivery, repair bool) {
	if s.unknown(from, repair) {
		return
	}
	is := s.usersOf(&d)
	for _, to := range s.w.processes {
		if to == from || !s.serves(to, is) {
			continue
		}
		if e, err := from.sender.Next(to.name, []delivery.Delivery{d}, nil); err == nil {
			s.put(from, to, e)
		}
	}
}

// unknown reports whether a sender does not learn for whom something is.
func (s *spine) unknown(from *process, needed bool) bool {
	if !s.w.trouble(s.hidden) {
		return false
	}
	if s.w.trace != nil {
		s.w.tracef("%s finds no routes", from.name)
	}
	if needed && !s.w.bug.noSkip {
		from.sender.BumpEpoch()
		if from.hub != nil {
			from.hub.InvalidateAll()
		}
	}
	return true
}

// serves reports whether a process has a route for one of some users.
func (s *spine) serves(p *process, is func(user string) bool) bool {
	return p.leased && slices.ContainsFunc(s.w.conns, func(c *conn) bool { return c.p == p && is(c.d.user) })
}

func (s *spine) receipt(p *process, row table.UserChat, state *chatv1.MemberState) {
	p.hub.Receipt(row.UserID, row.ChatID, state)
	if s.unknown(p, true) {
		return
	}
	for _, to := range s.w.processes {
		if to == p || !s.serves(to, func(user string) bool { return user == row.UserID }) {
			continue
		}
		if e, err := p.sender.Next(to.name, nil,
			[]linkseq.Receipt{{UserID: row.UserID, ChatID: row.ChatID, State: state}}); err == nil {
			s.put(p, to, e)
		}
	}
}

// round has senders send keepalives. Time passes for links only if nothing is on its
// way: only the dead are to fall silent.
func (s *spine) round() {
	for _, p := range s.w.processes {
		if !s.w.bug.noTick {
			p.receiver.Tick(s.linkNow)
		}
		s.discover(p)
	}
	if s.onTheWay() {
		return
	}
	s.linkNow = s.linkNow.Add(keepaliveEvery)
	for _, from := range s.senders() {
		for _, to := range s.w.processes {
			if to == from {
				continue
			}
			if e, err := from.sender.Keepalive(to.name); err == nil {
				s.put(from, to, e)
			}
		}
	}
}

func (s *spine) onTheWay() bool {
	for _, l := range s.wires {
		if len(l.queue) > 0 && !l.to.dead {
			return true
		}
	}
	return false
}

// spineActs are what happens to the durable path and the links, each as often as it
// stands here.
var spineActs = [][]func(*spine){
	{(*spine).round, (*spine).round, (*spine).round, (*spine).round},
	{(*spine).rebalance, (*spine).rebalance, (*spine).rebalance}, {(*spine).unlink},
	{(*spine).lapse}, {(*spine).crashRelay, (*spine).crashRelay}, {(*spine).secondRelay},
	{(*spine).crashFanout, (*spine).crashFanout},
	{(*spine).powerLoss}, {(*spine).back, (*spine).restore},
}

func (s *spine) act() { s.acts[s.w.choose.pick(len(s.acts))](s) }

func (s *spine) rebalance() {
	if len(s.order) == 0 {
		return
	}
	p, f := s.parts[s.order[s.w.choose.pick(len(s.order))]], s.fanouts[s.w.choose.pick(len(s.fanouts))]
	if s.w.trace != nil {
		s.w.tracef("a partition goes from %s to %s", p.owner.p.name, f.p.name)
	}
	s.assign(p, f)
}

func (s *spine) crashFanout() {
	f := s.fanouts[s.w.choose.pick(len(s.fanouts))]
	if s.w.trace != nil {
		s.w.tracef("%s dies", f.p.name)
	}
	f.p.dead = true
	s.fanouts = slices.DeleteFunc(s.fanouts, func(o *fanout) bool { return o == f })
	if len(s.fanouts) == 0 || s.w.choose.chance(500) {
		s.newFanout()
	}
	for _, k := range s.order {
		if p := s.parts[k]; p.owner == f {
			s.assign(p, s.fanouts[s.w.choose.pick(len(s.fanouts))])
		}
	}
}

func (s *spine) crashRelay() {
	h := s.relays[s.w.choose.pick(len(s.relays))]
	if s.w.trace != nil {
		s.w.tracef("%s dies", h.p.name)
	}
	s.endRelay(h)
	if len(s.relays) == 0 || s.relays[len(s.relays)-1].fence < s.fence {
		s.newRelay()
	}
}

// secondRelay begins a relay while another one does not know that its time is over.
func (s *spine) secondRelay() {
	if len(s.relays) < 2 {
		s.newRelay()
	}
}

// unlink ends a link whose peer seems gone, until it is seen again.
func (s *spine) unlink() {
	all := s.senders()
	from, to := all[s.w.choose.pick(len(all))], s.w.anyProcess()
	if from == to {
		return
	}
	if s.w.trace != nil {
		s.w.tracef("%s gives up %s", from.name, to.name)
	}
	from.sender.Drop(to.name)
	s.w.later("link again", func() bool {
		if !from.dead && !to.dead {
			s.put(from, to, from.sender.Open(to.name))
		}
		return false
	})
}

// lapse has a process's routes run out, until it can renew them.
func (s *spine) lapse() {
	p := s.w.anyProcess()
	if s.w.trace != nil {
		s.w.tracef("the routes of %s run out", p.name)
	}
	p.leased = false
	s.w.later("renew", func() bool {
		p.leased = true
		if !p.dead && !s.w.bug.keepLease {
			p.hub.InvalidateAll()
		}
		return false
	})
}

// stopAll ends every process and worker.
func (s *spine) stopAll() {
	for _, p := range slices.Clone(s.w.processes) {
		p.die()
	}
	for _, h := range slices.Clone(s.relays) {
		s.endRelay(h)
	}
	for _, f := range s.fanouts {
		f.p.dead = true
	}
	s.fanouts = nil
}

// startAll starts them again.
func (s *spine) startAll() {
	for n := 1 + s.w.choose.pick(3); n > 0; n-- {
		s.w.newProcess()
	}
	for range 2 {
		s.newFanout()
	}
	for _, k := range s.order {
		s.assign(s.parts[k], s.fanouts[s.w.choose.pick(len(s.fanouts))])
	}
	s.newRelay()
}

// powerLoss ends everything at once; the store keeps what it answered, the log what
// it had synced.
func (s *spine) powerLoss() {
	s.w.tracef("the power is lost")
	s.stopAll()
	s.loseTail()
	s.startAll()
}

// backup is the durable state at a moment.
type backup struct {
	store   *storetest.Memory
	logs    map[string]*chatLog
	chatIDs []string
	rows    int
}

func (s *spine) back() {
	w := s.w
	s.copied = &backup{store: w.store.Clone(), logs: map[string]*chatLog{}, chatIDs: slices.Clone(w.chatIDs), rows: s.rows}
	for id, l := range w.logs {
		s.copied.logs[id] = l.clone()
	}
}

func (l *chatLog) clone() *chatLog {
	c := *l
	c.entries, c.bySequence, c.pending = slices.Clone(l.entries), slices.Clone(l.bySequence), slices.Clone(l.pending)
	c.requests, c.spans = maps.Clone(l.requests), map[string][]span{}
	for user, spans := range l.spans {
		c.spans[user] = slices.Clone(spans)
	}
	return &c
}

// restore takes the store back to the backup, with all processes stopped and a new
// generation. The log and what is on its way stay.
func (s *spine) restore() {
	w, b := s.w, s.copied
	if b == nil || s.restored > 1 {
		return
	}
	w.tracef("the store is restored")
	s.copied = nil
	s.stopAll()
	s.restored++
	w.generation += "'"
	w.store, w.logs, w.chatIDs, s.rows = b.store, b.logs, b.chatIDs, b.rows
	w.synced, w.replica = w.moment, nil
	clear(s.base)
	for id, l := range w.logs {
		s.base[id] = int64(len(l.entries))
	}
	page, err := w.store.Scan(w.ctx, store.Scan{Table: store.Outbox, Segments: 1})
	if err != nil || page.Cursor != "" {
		w.failf("outbox: %v", err)
	}
	for _, r := range page.Rows {
		if o, err := table.OutboxFrom(r); err == nil {
			s.base[o.AggregateID] = min(s.base[o.AggregateID], o.FirstVersion-1)
		}
	}
	s.startAll()
	// Addresses are taken over by others: what is on its way may come to them.
	for _, l := range s.wires {
		if l.to.dead {
			l.to = w.processes[len(l.queue)%len(w.processes)]
		}
	}
	for _, d := range w.phones {
		d.forget()
	}
}

// forget takes back promises that a restored store does not keep.
func (d *phone) forget() {
	clear(d.applied)
	for id, sent := range d.sent {
		_, acked := d.acked[id]
		_, refused := d.refused[id]
		if _, there := d.w.chat(sent.chat).requests[id]; (acked || refused) && !there {
			delete(d.sent, id)
			delete(d.acked, id)
		}
	}
}
