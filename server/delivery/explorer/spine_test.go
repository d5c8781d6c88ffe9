package explorer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/delivery/linkseq"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	repair "github.com/parley-chat/parley/workers/fanout"
	"github.com/parley-chat/parley/workers/relay"
)

// spine is the durable path of a world: outbox, relays, a log, fanout workers; and
// the links by which processes notify each other (links_test.go). A world without
// one has a network that brings every commit to every hub in the end.
type spine struct {
	w        *world
	parts    map[kafka.Partition]*part
	order    []kafka.Partition
	events   map[string]event.Event // by event id
	rows     int                    // of the outbox
	base     map[string]int64       // by chat: what a restored store had published
	relays   []*relayHost
	fence    int  // of the newest relay
	fencing  bool // Kafka refuses what an older relay publishes
	syncing  bool // what is published is on stable storage only once it was synced
	inStore  bool // the log is in the store: what is appended deletes its rows, durably
	fanouts  []*fanout
	taken    int // changes of assignments
	wires    map[wireKey]*wire
	linkNow  time.Time
	rounds   int  // of keepalives, since there is no more trouble
	lossy    int  // of links, in 1/1,000
	unmet    int  // first keepalives that do not come, in 1/1,000
	share    int  // of acts that are acts of the spine, in 1/1,000
	hidden   int  // routes that cannot be found, in 1/1,000
	quiet    bool // nothing but the durable path notifies hubs of commits
	acts     []func(*spine)
	copied   *backup
	restored int
}

// part is one partition of the log.
type part struct {
	records   []record
	stable    int // records that survive a loss of power
	committed int // by the fanout's group
	owner     *fanout
	lease     int // which assignment to the owner it is
}

type record struct {
	event    event.Event
	restored int // times that the store had been restored
}

var serde = sync.OnceValues(func() (*event.Serde, error) {
	ids, err := registry.New(storetest.NewMemory(time.Now)).Events(context.Background())
	if err != nil {
		return nil, err
	}
	return event.NewSerde(ids, nil)
})

var silent = slog.New(slog.DiscardHandler)

func newSpine(w *world) *spine {
	s := &spine{
		w: w, parts: map[kafka.Partition]*part{}, events: map[string]event.Event{}, base: map[string]int64{},
		wires: map[wireKey]*wire{}, linkNow: epoch,
		fencing: w.choose.chance(500), syncing: w.choose.chance(500), lossy: []int{20, 0, 150, 0}[w.choose.pick(4)],
		hidden: []int{20, 0, 100, 0}[w.choose.pick(4)], quiet: w.choose.chance(400), share: 250,
		acts: some(w.choose, spineActs, 500),
	}
	if s.lossy >= 150 && s.quiet {
		s.unmet = 300
	}
	return s
}

// relayHost is a process that runs a relay.
type relayHost struct {
	p       *process
	relay   *relay.Relay
	fence   int
	running bool
	again   time.Time // when the next cycle is worth it

	mu        sync.Mutex // the relay deletes rows by many batches at once
	unwritten uint64     // which batches of the deletion fail; 0: none
	deleted   int        // rows, in the present cycle
}

func (s *spine) newRelay() {
	w := s.w
	w.made++
	s.fence++
	h := &relayHost{p: &process{w: w, name: fmt.Sprintf("r%d", w.made), busy: map[string]bool{}}, fence: s.fence}
	codec, err := serde()
	if err != nil {
		w.failf("serde: %v", err)
	}
	h.relay, err = relay.New(relay.Config{
		Store: &outboxStore{stops: stops{w: w, p: h.p}, h: h}, Serde: codec, Clock: func() time.Time { return w.now },
		Logger: silent, MaxBatch: 3, MaxNudges: 16, Deletes: s.inStore,
		Publish: func(_ context.Context, list []eventlog.Publication) error { return s.publish(h, list) },
		Flush: func(context.Context) error {
			st := stops{w: w, p: h.p}
			if err := st.seldom(); err != nil {
				return err
			}
			if !w.bug.unstable {
				s.sync()
			}
			h.unwritten = 0
			if w.trouble(w.faulty) {
				h.unwritten = uint64(w.choose.next())
			}
			return st.seldom()
		},
	})
	if err != nil {
		w.failf("relay: %v", err)
	}
	s.relays = append(s.relays, h)
	if w.trace != nil {
		w.tracef("%s begins", h.p.name)
	}
}

func (s *spine) sync() {
	for _, k := range s.order {
		s.parts[k].stable = len(s.parts[k].records)
	}
}

// cycle begins a cycle of a relay, unless one is under way.
func (s *spine) cycle(h *relayHost) bool {
	if h.running || h.p.dead {
		return false
	}
	h.running = true
	s.w.spawn(h.p, "cycle of "+h.p.name, "", func(ctx context.Context) {
		h.deleted = 0
		err := h.relay.Cycle(ctx)
		if h.running = false; h.deleted > 0 && s.w.trace != nil {
			s.w.tracef("%s has deleted %d rows", h.p.name, h.deleted)
		}
		h.again = s.w.now.Add(600 * time.Millisecond)
		if err != nil {
			if s.w.trace != nil {
				s.w.tracef("%s: %v", h.p.name, err)
			}
		}
		if errors.Is(err, kafka.ErrFenced) {
			s.endRelay(h)
		}
	})
	return true
}

func (s *spine) endRelay(h *relayHost) {
	h.p.dead = true
	s.relays = slices.DeleteFunc(s.relays, func(o *relayHost) bool { return o == h })
}

var errProduce = errors.New("transaction failed")

// publish is one transaction. Its answer gets lost now and then, with or without
// the records.
func (s *spine) publish(h *relayHost, list []eventlog.Publication) error {
	w, st := s.w, stops{w: s.w, p: h.p}
	if err := st.seldom(); err != nil {
		return err
	}
	lost := w.trouble(w.faulty)
	if lost && w.choose.chance(500) {
		return errProduce
	}
	if s.fencing && h.fence < s.fence {
		return kafka.ErrFenced
	}
	if w.bug.lateProduce { // acknowledged, but written only if the relay lives on
		w.later("produce", func() bool {
			if !h.p.dead {
				s.append(h, relay.Records(list))
			}
			return false
		})
		if s.inStore {
			s.deleteRows(list)
		}
		return nil
	}
	s.append(h, relay.Records(list))
	if s.inStore && !w.bug.keepRow {
		s.deleteRows(list)
	}
	if err := st.seldom(); err != nil {
		return err
	}
	if lost {
		return errProduce
	}
	return nil
}

// deleteRows deletes the rows of publications in the commit of their records.
func (s *spine) deleteRows(list []eventlog.Publication) {
	w := s.w
	var deletes []store.Write
	for _, p := range list {
		if w.peek(p.Row) != nil {
			s.rows--
		}
		deletes = append(deletes, store.Write{Op: store.OpDelete, Key: p.Row})
	}
	w.must(w.store.BatchWrite(w.ctx, deletes))
}

func (s *spine) append(h *relayHost, records []*kafka.Record) {
	w := s.w
	for _, r := range records {
		e := s.events[string(r.Headers[0].Value)]
		if e == nil || e.GetChatId() != string(r.Key) {
			w.failf("%s publishes an event that was never committed: %s", h.p.name, r.Headers[0].Value)
			return
		}
		k := kafka.Partition{Topic: r.Topic, ID: r.Partition}
		p := s.parts[k]
		if p == nil {
			p = &part{}
			s.parts[k] = p
			s.order = append(s.order, k)
			s.assign(p, s.fanouts[w.choose.pick(len(s.fanouts))])
		}
		s.checkOrder(p, r.Topic, e)
		p.records = append(p.records, record{event: e, restored: s.restored})
		if !s.syncing {
			p.stable = len(p.records)
		}
		if w.trace != nil {
			w.tracef("%s publishes %s@%d", h.p.name, short(e.GetChatId()), e.GetMetadata().GetVersion())
		}
	}
}

// checkOrder demands that the first occurrences of a chat's events in a partition
// are in order, without one left out, and that the log in the store has no second one.
func (s *spine) checkOrder(p *part, topic string, e event.Event) {
	id, v := e.GetChatId(), e.GetMetadata().GetVersion()
	seen := s.base[id]
	for _, r := range p.records {
		if r.restored == s.restored && r.event.GetChatId() == id {
			seen = max(seen, r.event.GetMetadata().GetVersion())
		}
	}
	if s.inStore && v <= seen {
		s.w.failf("version %d of %s is published again", v, short(id))
	}
	for _, en := range s.w.chat(id).entries {
		if at := en.event.GetMetadata().GetVersion(); at > seen && at < v && event.SpecOf(en.event).Topic == topic {
			s.w.failf("%s of %s is published before version %d", topic, short(id), at)
		}
	}
}

// fanout is a worker that notifies hubs of what is in the log.
type fanout struct {
	p      *process
	sender *linkseq.Sender
	pos    map[*part]int
}

func (s *spine) newFanout() *fanout {
	w := s.w
	w.made++
	f := &fanout{p: &process{w: w, name: fmt.Sprintf("f%d", w.made), busy: map[string]bool{}}, pos: map[*part]int{}}
	f.p.sender = linkseq.NewSender(f.p.name, w.generation)
	f.sender = f.p.sender
	s.fanouts = append(s.fanouts, f)
	s.greet(f.p)
	return f
}

// assign gives a partition to a worker, which resumes where the group has committed.
func (s *spine) assign(p *part, f *fanout) {
	s.taken++
	p.owner, p.lease = f, s.taken
	f.pos[p] = p.committed
	if s.w.bug.newest {
		f.pos[p] = len(p.records)
	}
}

// poll takes the next records of a partition and notifies the hubs; the commit comes
// later. A worker that has lost the partition meanwhile cannot commit.
func (s *spine) poll(p *part) bool {
	w, f := s.w, p.owner
	from := f.pos[p]
	if from >= len(p.records) {
		return false
	}
	to := min(from+1+w.choose.pick(4), len(p.records))
	f.pos[p] = to
	lease := p.lease
	commit := func() bool {
		if !f.p.dead && p.lease == lease {
			p.committed = max(p.committed, min(to, len(p.records)))
		}
		return false
	}
	handle := func() {
		var order []string
		events := map[string][]event.Event{}
		for _, r := range p.records[min(from, len(p.records)):min(to, len(p.records))] {
			id := r.event.GetChatId()
			if events[id] == nil {
				order = append(order, id)
			}
			events[id] = append(events[id], r.event)
		}
		for _, id := range order {
			for _, d := range repair.Merge(events[id]) {
				if w.trace != nil {
					w.tracef("%s handles %s@%d of %d events", f.p.name, short(d.ChatID), d.Version, len(events[id]))
				}
				if w.bug.repair != nil {
					w.bug.repair(&d)
				}
				s.notify(f.p, d, true)
			}
		}
	}
	if w.bug.commitFirst {
		commit()
		w.later("handle", func() bool {
			if !f.p.dead && p.lease == lease {
				handle()
			}
			return false
		})
		return true
	}
	handle()
	w.later("commit", commit)
	return true
}

// step lets one thing of the durable path happen.
func (s *spine) step() {
	w := s.w
	n := w.choose.pick(len(s.relays) + len(s.order))
	if n < len(s.relays) {
		s.cycle(s.relays[n])
		return
	}
	s.poll(s.parts[s.order[n-len(s.relays)]])
}

// settle gives all of the durable path a turn, once there is no more trouble.
func (s *spine) settle() (did bool) {
	for _, h := range slices.Clone(s.relays) {
		if s.rows > 0 && !s.w.now.Before(h.again) {
			did = s.cycle(h) || did
		}
	}
	for _, k := range s.order {
		did = s.poll(s.parts[k]) || did
	}
	return did
}

// compare demands that everything committed is in the log, and nothing is left in
// the outbox.
func (s *spine) compare() {
	w := s.w
	if s.rows != 0 {
		w.failf("%d rows stay in the outbox", s.rows)
	}
	type position struct {
		chat    string
		version int64
	}
	there := map[position]bool{}
	for _, k := range s.order {
		for _, r := range s.parts[k].records {
			if r.restored == s.restored {
				there[position{r.event.GetChatId(), r.event.GetMetadata().GetVersion()}] = true
			}
		}
	}
	for _, id := range w.chatIDs {
		for v := s.base[id] + 1; v <= int64(len(w.chat(id).entries)); v++ {
			if !there[position{id, v}] {
				w.failf("version %d of %s is not in the log", v, short(id))
			}
		}
	}
}

// loseTail takes away what was not on stable storage.
func (s *spine) loseTail() {
	for _, k := range s.order {
		p := s.parts[k]
		n := p.stable + s.w.choose.pick(len(p.records)-p.stable+1)
		p.records = p.records[:n]
		p.committed = min(p.committed, n)
		for _, f := range s.fanouts {
			f.pos[p] = min(f.pos[p], n)
		}
	}
}

// committed notifies hubs and relays of a commit.
func (s *spine) committed(p *process, c chat.Commit) {
	w := s.w
	for _, h := range s.relays {
		w.later("nudge", func() bool {
			if !h.p.dead && !w.trouble(w.lossy) {
				h.relay.Nudge(c)
			}
			return false
		})
	}
	if s.quiet {
		return
	}
	d := delivery.Of(c.Events)
	p.hub.Deliver(d)
	s.notify(p, d, false)
}

// usersOf are the users that a delivery is for: the members, and those that were.
func (s *spine) usersOf(d *delivery.Delivery) func(user string) bool {
	l := s.w.chat(d.ChatID)
	return func(user string) bool { return l.open(user) != nil || slices.Contains(d.Targets, user) }
}
