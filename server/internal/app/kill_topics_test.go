package app_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// position is where a message stands.
type position struct {
	partition int32
	position  int64
}

// ledger is what publishers and the members of one topic have seen.
type ledger struct {
	testing.TB
	durable bool // acknowledgements are answered when they are durable

	mu        sync.Mutex
	cond      *sync.Cond
	published map[string]position          // payloads, by acknowledged publishes
	seen      map[position]string          // payloads, by deliveries
	owned     map[string]map[position]bool // deliveries to a group, by group and life of the server
	settled   map[string]map[position]bool // acknowledged for good, by group
	floors    map[string]map[int32]int64   // by group and partition
}

func newLedger(t testing.TB, durable bool) *ledger {
	l := &ledger{TB: t, durable: durable, published: map[string]position{}, seen: map[position]string{},
		owned: map[string]map[position]bool{}, settled: map[string]map[position]bool{}, floors: map[string]map[int32]int64{}}
	l.cond = sync.NewCond(&l.mu)
	return l
}

// publish records what a publish was answered.
func (l *ledger) publish(req *topicv1.PublishRequest, res *topicv1.PublishResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, r := range res.GetResults() {
		payload, at := string(req.GetMessages()[i].GetPayload()), position{r.GetPartition(), r.GetPosition()}
		if was, ok := l.published[payload]; ok && was != at {
			l.Errorf("%s stands at %v and %v", payload, was, at)
		}
		l.published[payload] = at
	}
	l.cond.Broadcast()
}

// wait returns when n more messages are published.
func (l *ledger) wait(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for want := len(l.published) + n; len(l.published) < want; {
		l.cond.Wait()
	}
}

// deliver records a delivery to a group. A message has one owner in a life of the server,
// and none once it is acknowledged.
func (l *ledger) deliver(group, session string, d *topicv1.Delivery) {
	parts := strings.SplitN(session, "-", 3) // slot, epoch, and what makes it one
	life := strings.Join(parts[:2], "-")
	l.mu.Lock()
	defer l.mu.Unlock()
	owned := l.owned[group+" "+life]
	if owned == nil {
		owned = map[position]bool{}
		l.owned[group+" "+life] = owned
	}
	for i, m := range d.GetMessages() {
		at := position{d.GetPartition(), d.GetBase() + int64(i)}
		if d.GetOffsets() != nil {
			at.position = d.GetBase() + int64(d.GetOffsets()[i])
		}
		payload := string(m.GetPayload())
		switch was, ok := l.seen[at]; {
		case ok && was != payload:
			l.Errorf("%v is %s and %s", at, was, payload)
		case owned[at]:
			l.Errorf("%s: %v has two owners in life %s", group, at, life)
		case l.durable && l.settled[group][at]:
			l.Errorf("%s: %v is delivered after it was acknowledged", group, at)
		}
		l.seen[at], owned[at] = payload, true
	}
}

// settle records that acknowledgements were answered.
func (l *ledger) settle(group string, all []position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settled[group] == nil {
		l.settled[group] = map[position]bool{}
	}
	for _, at := range all {
		l.settled[group][at] = true
	}
}

// floor records the floors of a group, which do not go back, and returns what is pending.
func (l *ledger) floor(group string, parts []*topicv1.SubscriptionPartition) (pending int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.floors[group] == nil {
		l.floors[group] = map[int32]int64{}
	}
	for _, p := range parts {
		if was := l.floors[group][p.GetPartition()]; p.GetFloor() < was && l.durable {
			l.Errorf("%s: the floor of partition %d went back from %d to %d", group, p.GetPartition(), was, p.GetFloor())
		}
		l.floors[group][p.GetPartition()] = p.GetFloor()
		pending += p.GetPending()
	}
	return pending
}

// check holds what was delivered against what was published.
func (l *ledger) check(groups []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	positions := map[string]int{}
	for _, payload := range l.seen {
		positions[payload]++
	}
	for payload, at := range l.published {
		if l.seen[at] != payload || positions[payload] != 1 {
			l.Errorf("%s was promised at %v, where there is %q; it is in %d places", payload, at, l.seen[at], positions[payload])
		}
		for _, g := range groups {
			if !l.settled[g][at] {
				l.Errorf("%s: %s at %v was never acknowledged", g, payload, at)
			}
		}
	}
}

// topicClients are a user's clients of topics.
type topicClients struct {
	topics        topicv1connect.TopicServiceClient
	subscriptions topicv1connect.SubscriptionServiceClient
	consumers     topicv1connect.ConsumerServiceClient
}

func newTopicClients(t testing.TB, dir, addr string) *topicClients {
	hc, base := &http.Client{Transport: bearer{token(t, dir, "alice"), newTransport(t, true)}}, "http://"+addr
	return &topicClients{topicv1connect.NewTopicServiceClient(hc, base, connect.WithGRPC()),
		topicv1connect.NewSubscriptionServiceClient(hc, base, connect.WithGRPC()),
		topicv1connect.NewConsumerServiceClient(hc, base, connect.WithGRPC())}
}

// write publishes to a topic until stop ends. A publisher gives no request up: it repeats
// it with its number until it is answered.
func (c *topicClients) write(ctx, stop context.Context, topic string, w int, l *ledger) {
	for number := int64(1); stop.Err() == nil; number++ {
		req := &topicv1.PublishRequest{Topic: topic, Producer: &topicv1.Producer{Id: fmt.Sprint("w", w), Number: number}}
		for i := range 1 + rand.N(5) {
			req.Messages = append(req.Messages, &topicv1.TopicMessage{Key: fmt.Sprint(rand.N(20)),
				Payload: fmt.Appendf(nil, "%d/%d/%d", w, number, i)})
		}
		res, err := call(ctx, c.topics.Publish, req)
		if err != nil {
			l.Errorf("publish: %v", err)
			return
		}
		l.publish(req, res)
	}
}

// consume is a member of a group until ctx ends; its streams end with the server's lives.
func (c *topicClients) consume(ctx context.Context, topic, group string, l *ledger) {
	for ctx.Err() == nil {
		if err := c.follow(ctx, topic, group, l); err != nil && ctx.Err() == nil {
			time.Sleep(5 * time.Millisecond) // not as fast as it goes: the server comes back
		}
	}
}

// follow acknowledges what one stream brings.
func (c *topicClients) follow(ctx context.Context, topic, group string, l *ledger) error {
	stream, err := c.consumers.ConsumeBidi(ctx)
	if err != nil {
		return err
	}
	defer stream.CloseResponse()
	if err := stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{
		Attach: &topicv1.Attach{Topic: topic, Group: group, RenewCredits: true}}}); err != nil {
		return err
	}
	session, sent, waiting := "", int64(1), map[int64][]position{}
	for {
		res, err := stream.Receive()
		if err != nil {
			return err
		}
		if a := res.GetAttached(); a != nil {
			session = a.GetSession()
		}
		if s := res.GetSettled(); s != nil {
			for n, positions := range waiting {
				if n <= s.GetRequests() && len(s.GetRefusals()) == 0 {
					l.settle(group, positions)
					delete(waiting, n)
				}
			}
		}
		d := res.GetDelivery()
		if d == nil {
			continue
		}
		l.deliver(group, session, d)
		sent++
		set := &topicv1.AckSet{}
		for i := range d.GetMessages() {
			at := position{d.GetPartition(), d.GetBase() + int64(i)}
			if d.GetOffsets() != nil {
				at.position = d.GetBase() + int64(d.GetOffsets()[i])
			}
			set.Positions = append(set.Positions, &topicv1.Positions{Partition: at.partition, Base: at.position})
			waiting[sent] = append(waiting[sent], at)
		}
		if err := stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{Ack: set}}); err != nil {
			return err
		}
	}
}

// TestKillTopics kills the real binary again and again under publishers and consumers: no
// acknowledged publish is missing or there twice, each group gets every message until it
// has acknowledged it and, where acknowledgements are answered when they are durable, not
// again; no message has two owners in a life of the server, and no floor goes back.
// PARLEY_KILLS sets the number of kills, or the time for them.
func TestKillTopics(t *testing.T) {
	besides(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t, rand.Uint64()), 3))
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--topic-creators", "alice")
	ctx, progress := untilStuck(t, 2*time.Minute)
	addr := p.addr
	c := newTopicClients(t, dir, addr)
	groups := map[string][]string{"counted": {"a", "b"}, "fast": {"a", "b"}, "work": {"$queue"}}
	ledgers := map[string]*ledger{"counted": newLedger(t, true), "fast": newLedger(t, false), "work": newLedger(t, true)}
	for topic := range groups {
		config := &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 2,
			CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_REFERENCE_COUNTING}
		switch topic {
		case "fast":
			config.CompletionMode = topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK
		case "work":
			config.Semantics = topicv1.Semantics_SEMANTICS_QUEUE
		}
		if _, err := c.topics.ConfigureTopic(ctx, &topicv1.ConfigureTopicRequest{Topic: topic, Config: config}); err != nil {
			t.Fatal(err)
		}
	}
	var writing, reading sync.WaitGroup
	write, stopWriting := context.WithCancel(ctx)
	read, stopReading := context.WithCancel(ctx)
	for topic, of := range groups {
		for _, g := range of {
			if g != "$queue" {
				req := &topicv1.CreateSubscriptionRequest{Topic: topic, Group: g}
				if _, err := c.subscriptions.CreateSubscription(ctx, req); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				reading.Go(func() { c.consume(read, topic, g, ledgers[topic]) })
			}
		}
		for w := range 2 {
			writing.Go(func() { c.write(ctx, write, topic, w, ledgers[topic]) })
		}
	}
	kills := 0
	for range testkit.Rounds(t, "PARLEY_KILLS", 3) {
		kills++
		progress()
		ledgers["counted"].wait(50 + rng.IntN(300))
		p.kill()
		p = launch(t, dir, addr, "--topic-creators", "alice")
		c.floors(ctx, t, groups, ledgers)
	}
	ledgers["counted"].wait(100)
	stopWriting()
	writing.Wait()
	progress()
	for c.floors(ctx, t, groups, ledgers) > 0 {
		time.Sleep(20 * time.Millisecond) // until all is acknowledged, or the test's time is over
	}
	for topic, l := range ledgers {
		l.quiet(groups[topic])
		l.check(groups[topic])
		t.Logf("%s: %d kills, %d messages", topic, kills, len(l.published))
	}
	stopReading()
	p.kill() // which ends their streams
	reading.Wait()
}

// quiet takes what is below the floors as acknowledged: the answer may have been lost with a
// life of the server.
func (l *ledger) quiet(groups []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range groups {
		if l.settled[g] == nil {
			l.settled[g] = map[position]bool{}
		}
		for at := range l.seen {
			if at.position < l.floors[g][at.partition] {
				l.settled[g][at] = true
			}
		}
	}
}

// floors asks for the floors of all groups and returns how much is pending.
func (c *topicClients) floors(
	ctx context.Context, t *testing.T, groups map[string][]string, ledgers map[string]*ledger,
) (pending int64) {
	t.Helper()
	for topic, of := range groups {
		for _, g := range of {
			res, err := call(ctx, c.subscriptions.GetSubscription, &topicv1.GetSubscriptionRequest{Topic: topic, Group: g})
			if err != nil {
				t.Fatal(err)
			}
			pending += ledgers[topic].floor(g, res.GetSubscription().GetPartitions())
		}
	}
	return pending
}
