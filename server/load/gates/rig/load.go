// Package rig is a server under test, a process of its own, and a topic of it that is under
// load: publishers at a rate, groups with a member each, and how long messages take.
//
// It knows the server by its contracts, its metrics and its files only, and judges nothing.
// Concurrency: a Load and its Phase are safe for concurrent use, but for Begin and what
// begins phases; a Server and a User by many.
package rig

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/load/figure"
)

// How a topic is loaded.
const (
	payloadSize = 200             // bytes of a message
	callRate    = 1000            // publishes a second at most; beyond it they get larger
	callers     = 64              // publishes under way at most
	creditCount = 20_000          // messages that a member may hold
	creditBytes = 8 << 20         // of them
	hopeless    = 3 * time.Second // by which publishes are late when a rate is given up

	// Connections is how many connections callers share.
	Connections = 4
	// PollEvery is how often something is checked that changes.
	PollEvery = 10 * time.Millisecond
	// MessageBytes is the size of a stored message, about.
	MessageBytes = payloadSize + 8
)

// Load is a topic with groups that publishers and consumers of this process drive.
type Load struct {
	server *Server
	User   *User // for what is not measured
	Topic  string
	base   time.Time
	Groups []*Group
	conns  []*User

	Published atomic.Int64
	phase     atomic.Pointer[Phase]
	phases    uint32
}

// Phase is a time in which the rate is the same. A message bears the number of its phase.
type Phase struct {
	number   uint32
	calls    atomic.Int64
	answered []atomic.Int64 // by call: when its publish was answered, ns since base; 0: not yet

	Publish  figure.Histogram // from when a call was due to its answer
	Fetch    figure.Histogram // from that to the handler of a consumer
	Total    figure.Histogram // from when it was due to that
	Stored   figure.Histogram // from an acknowledgement to the answer that it is stored
	Hopeless atomic.Bool
	failed   atomic.Pointer[error]
}

// Group is a group with one member.
type Group struct {
	Name      string
	Delivered atomic.Int64
	Old       atomic.Int64 // of them of earlier phases
	Seen      *Seen        // if not nil, where each of them stood
	User      *User
	End       context.CancelFunc
	ended     chan struct{}
}

// New makes a topic with groups, and a member of each.
func New(
	ctx context.Context, s *Server, topic string, c *topicv1.TopicConfig, groups int, sub *topicv1.SubscriptionConfig,
) (*Load, error) {
	l := &Load{server: s, User: s.User(), Topic: topic, base: time.Now()}
	l.Begin(0)
	for range Connections {
		l.conns = append(l.conns, s.User())
	}
	if err := l.User.Configure(ctx, topic, c); err != nil {
		return nil, err
	}
	for i := range groups {
		g := &Group{Name: fmt.Sprintf("group-%d", i)}
		if err := l.User.Subscribe(ctx, topic, g.Name, sub); err != nil {
			return nil, err
		}
		l.Groups = append(l.Groups, g)
		if err := l.Follow(ctx, g); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Close ends the members and connections.
func (l *Load) Close() {
	for _, g := range l.Groups {
		g.Leave()
	}
	for _, u := range append(l.conns, l.User) {
		u.Vanish()
	}
}

// Leave ends the member. Its messages go to another member.
func (g *Group) Leave() {
	if g.End != nil {
		g.End()
		g.User.Vanish() // an answer to the end of the stream is not waited for
		<-g.ended
	}
}

// Follow attaches a member to a group, which acknowledges what it gets as soon as it has
// checked it.
func (l *Load) Follow(ctx context.Context, g *Group) error {
	ctx, g.End = context.WithCancel(ctx)
	g.User, g.ended = l.server.User(), make(chan struct{})
	stream, err := g.User.consumers.ConsumeBidi(ctx)
	if err == nil {
		err = stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{Attach: &topicv1.Attach{
			Topic: l.Topic, Group: g.Name, RenewCredits: true,
			Credits: &topicv1.Credits{Messages: creditCount, Bytes: creditBytes}}}})
	}
	if err == nil {
		_, err = stream.Receive()
	}
	if err != nil {
		g.End()
		close(g.ended)
		return fmt.Errorf("group %s: %w", g.Name, err)
	}
	go func() {
		defer close(g.ended)
		var acks []time.Time // without an answer, the oldest first
		covered := int64(1)  // requests that were answered; the first is Attach
		for {
			res, err := stream.Receive()
			if err != nil {
				l.lost(ctx, g, err)
				return
			}
			if s := res.GetSettled(); s != nil {
				for ; covered < s.GetRequests() && len(acks) > 0; covered++ {
					l.phase.Load().Stored.Add(time.Since(acks[0]))
					acks = acks[1:]
				}
				if len(s.GetRefusals()) > 0 {
					l.lost(ctx, g, fmt.Errorf("%v", s.GetRefusals()[0]))
				}
			}
			d := res.GetDelivery()
			if d == nil {
				continue
			}
			l.take(g, d)
			acks = append(acks, time.Now())
			if err := stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{
				Ack: &topicv1.AckSet{Positions: positions(d)}}}); err != nil {
				l.lost(ctx, g, err)
				return
			}
		}
	}()
	return nil
}

// lost counts what a consumer should not see, unless it ends.
func (l *Load) lost(ctx context.Context, g *Group, err error) {
	if ctx.Err() == nil {
		l.phase.Load().fail(fmt.Errorf("group %s: %w", g.Name, err))
	}
}

func (p *Phase) fail(err error) { p.failed.CompareAndSwap(nil, &err) }

// Err is what went wrong first.
func (p *Phase) Err() error {
	if e := p.failed.Load(); e != nil {
		return *e
	}
	return nil
}

// positions are the positions of a delivery.
func positions(d *topicv1.Delivery) (list []*topicv1.Positions) {
	if len(d.GetOffsets()) == 0 {
		return []*topicv1.Positions{{Partition: d.GetPartition(), Base: d.GetBase(), Count: int64(len(d.GetMessages()))}}
	}
	for _, o := range d.GetOffsets() {
		list = append(list, &topicv1.Positions{Partition: d.GetPartition(), Base: d.GetBase() + int64(o)})
	}
	return list
}

// A stamp is what a message bears: when it was due, the numbers of phase and call, and
// whether it is the first of its call. Only that one is timed.
const stampSize = 17

func putStamp(b []byte, due time.Duration, phase, call uint32, first bool) {
	binary.BigEndian.PutUint64(b, uint64(due))
	binary.BigEndian.PutUint32(b[8:], phase)
	binary.BigEndian.PutUint32(b[12:], call)
	b[16] = 0
	if first {
		b[16] = 1
	}
}

func stamp(b []byte) (due time.Duration, phase, call uint32, first bool) {
	if len(b) < stampSize {
		return 0, 0, 0, false
	}
	return time.Duration(binary.BigEndian.Uint64(b)),
		binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:]), b[16] == 1
}

// take counts what a member got, and how long that took.
func (l *Load) take(g *Group, d *topicv1.Delivery) {
	now, p := time.Since(l.base), l.phase.Load()
	for _, m := range d.GetMessages() {
		due, number, call, first := stamp(m.GetPayload())
		if number != p.number {
			g.Old.Add(1)
			continue
		}
		if !first || int(call) >= len(p.answered) {
			continue
		}
		fetched := time.Duration(0) // it came before the answer did
		if at := p.answered[call].Load(); at > 0 {
			fetched = now - time.Duration(at)
		}
		p.Fetch.Add(fetched)
		p.Total.Add(now - due)
	}
	g.Delivered.Add(int64(len(d.GetMessages())))
	if g.Seen != nil {
		for _, p := range positions(d) {
			g.Seen.add(p)
		}
	}
}

// Seen is which messages a group has got, however often.
type Seen struct {
	mu   sync.Mutex
	sets map[int32]map[int64]bool
}

func (s *Seen) add(p *topicv1.Positions) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sets == nil {
		s.sets = map[int32]map[int64]bool{}
	}
	set := s.sets[p.GetPartition()]
	if set == nil {
		set = map[int64]bool{}
		s.sets[p.GetPartition()] = set
	}
	for i := range max(p.GetCount(), 1) {
		set[p.GetBase()+i] = true
	}
}

// Between counts the messages from one list of partitions' ends to another, and those of them that the group has got.
func (s *Seen) Between(from, to []*topicv1.PartitionBounds) (got, all int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range to {
		for at := from[i].GetEnd(); at < p.GetEnd(); at++ {
			all++
			if s.sets[p.GetPartition()][at] {
				got++
			}
		}
	}
	return got, all
}

// Begin begins a phase of up to so many calls.
func (l *Load) Begin(calls int) *Phase {
	l.phases++
	p := &Phase{number: l.phases, answered: make([]atomic.Int64, calls)}
	l.phase.Store(p)
	return p
}

// shape is how many calls a second make a rate, and how many messages are in each.
func shape(rate float64) (calls float64, batch int) {
	batch = max(1, int(rate/callRate+0.999))
	return rate / float64(batch), batch
}

// Pace publishes at a rate for a time, as a new phase, regardless of the outcome of the
// calls before: each counts from when it was due.
func (l *Load) Pace(ctx context.Context, rate float64, d time.Duration) *Phase {
	calls, batch := shape(rate)
	total := int64(calls * d.Seconds())
	p := l.Begin(int(total))
	began := time.Since(l.base)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			u := l.conns[i%len(l.conns)]
			req := &topicv1.PublishRequest{Topic: l.Topic, Messages: Messages(batch)}
			for ctx.Err() == nil && !p.Hopeless.Load() {
				call := p.calls.Add(1) - 1
				if call >= total {
					return
				}
				l.publish(ctx, u, req, p, uint32(call), began+time.Duration(float64(call)/calls*float64(time.Second)))
			}
		})
	}
	all.Wait()
	return p
}

// publish makes a call when it is due.
func (l *Load) publish(
	ctx context.Context, u *User, req *topicv1.PublishRequest, p *Phase, call uint32, due time.Duration,
) {
	late := time.Since(l.base) - due
	if late > hopeless {
		p.Hopeless.Store(true)
		return
	}
	if late < 0 && wait.For(ctx, -late) != nil {
		return
	}
	for i, m := range req.GetMessages() {
		putStamp(m.GetPayload(), due, p.number, call, i == 0)
	}
	if _, err := u.Topics.Publish(ctx, req); err != nil {
		if ctx.Err() == nil {
			p.fail(fmt.Errorf("publish: %w", err))
		}
		return
	}
	now := time.Since(l.base)
	p.answered[call].Store(int64(now))
	p.Publish.Add(now - due)
	l.Published.Add(int64(len(req.GetMessages())))
}

// Messages are messages whose bytes no compression makes smaller.
func Messages(n int) []*topicv1.TopicMessage {
	list := make([]*topicv1.TopicMessage, n)
	for i := range list {
		list[i] = &topicv1.TopicMessage{Payload: make([]byte, payloadSize)}
		_, _ = rand.Read(list[i].Payload) // it never fails
	}
	return list
}

// Flood publishes so many messages as fast as they are taken.
func (l *Load) Flood(ctx context.Context, n int) error {
	const batch, workers = 1000, 8
	p, all := l.Begin(0), sync.WaitGroup{}
	left := atomic.Int64{}
	left.Store(int64(n / batch))
	for i := range workers {
		all.Go(func() {
			req := &topicv1.PublishRequest{Topic: l.Topic, Messages: Messages(batch)}
			for _, m := range req.GetMessages() {
				putStamp(m.GetPayload(), 0, p.number, 0, false)
			}
			for left.Add(-1) >= 0 && ctx.Err() == nil && p.Err() == nil {
				if _, err := l.conns[i%len(l.conns)].Topics.Publish(ctx, req); err != nil {
					p.fail(err)
					return
				}
				l.Published.Add(batch)
			}
		})
	}
	all.Wait()
	return p.Err()
}

// Lag is how many messages the slowest group has not seen.
func (l *Load) Lag() int64 {
	n, highest := l.Published.Load(), int64(0)
	for _, g := range l.Groups {
		highest = max(highest, n-g.Delivered.Load())
	}
	return highest
}

// Drain waits until every group has everything and all of it is acknowledged, for a time at
// most. It returns how long that took, and whether it came.
func (l *Load) Drain(ctx context.Context, limit time.Duration) (time.Duration, bool) {
	began := time.Now()
	for time.Since(began) < limit && wait.For(ctx, PollEvery) == nil {
		if l.Lag() > 0 {
			continue
		}
		if b, err := l.User.Bounds(ctx, l.Topic); err == nil && b.Watermark == b.End {
			return time.Since(began), true
		}
	}
	return time.Since(began), false
}
