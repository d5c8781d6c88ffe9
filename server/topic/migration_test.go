package topic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

func (x *fixture) mode(topic string, m topicv1.CompletionMode) []string {
	x.t.Helper()
	r, err := x.Configure(x.t.Context(), op, &topicv1.ConfigureTopicRequest{
		Topic: topic, Config: &topicv1.TopicConfig{CompletionMode: m}})
	if err != nil {
		x.t.Fatal(err)
	}
	return r.GetEffects()
}

func (x *fixture) semantics(topic string, s topicv1.Semantics) error {
	_, err := x.Configure(x.t.Context(), op, &topicv1.ConfigureTopicRequest{
		Topic: topic, Config: &topicv1.TopicConfig{Semantics: s}})
	return err
}

// dies ends the process by a power failure.
func (x *fixture) dies(rng *rand.Rand) {
	x.t.Helper()
	disk := x.disk.PowerLoss(rng)
	x.stop()
	x.disk = disk
	x.start()
}

// numbersOf picks the messages at some positions of what is delivered in order.
func numbersOf(list ...int) string { return strings.Trim(fmt.Sprint(list), "[]") }

// HQ-T2, HQ-T3, HQ-T4: whatever the mode becomes, each group keeps what it has
// acknowledged, with its gaps, and the watermark is the lowest of them: nothing comes again
// and nothing is passed over. What was acknowledged under a watermark is on disk when the
// change to reference counting is answered.
func TestModeChangeKeepsGaps(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		rng := rand.New(rand.NewPCG(3, 3))
		for _, name := range []string{"t", "other"} {
			x.groups(name, "a", "b")
			x.publish(name, 0, 10)
			for g, acked := range map[string][]int{"a": {0, 1, 3, 4}, "b": {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}} {
				s := x.attach(name, g, "m")
				had := x.want(s, numbers(0, 10))
				for _, i := range acked {
					x.ack(s, had[i:i+1])
				}
				if err := s.Detach(t.Context(), false); err != nil {
					t.Fatal(err)
				}
			}
		}
		left := []int{2, 5, 6, 7, 8, 9}
		for i, m := range []topicv1.CompletionMode{storage.OffsetWatermark, storage.ReferenceCounting,
			storage.OffsetWatermark, storage.ReferenceCounting} {
			if effects := x.mode("t", m); len(effects) != 1 {
				t.Errorf("%q", effects)
			}
			x.dies(rng)
			for _, name := range []string{"t", "other"} {
				d, err := x.Topic(t.Context(), op, name)
				if err != nil || d.GetPartitions()[0].GetWatermark() != 2 {
					t.Errorf("step %d: %v, %v", i, d, err)
				}
				x.want(x.attach(name, "b", "m"), "")
			}
			s := x.attach("t", "a", "m")
			had := x.want(s, numbersOf(left...))
			if m == storage.OffsetWatermark { // is answered before it is written
				x.ack(s, had[len(had)-1:])
				left = left[:len(left)-1]
			}
			if err := s.Detach(t.Context(), false); err != nil {
				t.Fatal(err)
			}
		}
		x.want(x.attach("other", "a", "m"), numbersOf(2, 5, 6, 7, 8, 9))
	})
}

// promises are what members of a group were answered while the mode of their topic changes.
type promises struct {
	mu                sync.Mutex
	counting          bool // acknowledgements that begin now are answered when they are durable
	published, tried  map[int64]bool
	answered, durable map[int64]bool
}

// counts takes what was answered before as durable, or what is answered from now on not.
func (p *promises) counts(yes bool, before map[int64]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counting = yes
	for at := range before {
		p.durable[at] = true
	}
}

func (p *promises) answers() map[int64]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[int64]bool{}
	for at := range p.answered {
		all[at] = true
	}
	return all
}

// HQ-T1: the mode changes while messages are published and acknowledged, and the power fails
// at any moment: no published message is missing, and none comes again that was promised to
// be acknowledged.
func TestModeChangeUnderLoad(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 0))
	for range 12 {
		unbubbled(t, func(t *testing.T, x *fixture) {
			x.groups("t", "g")
			p := &promises{counting: true, published: map[int64]bool{}, tried: map[int64]bool{},
				answered: map[int64]bool{}, durable: map[int64]bool{}}
			s := x.attach("t", "g", "m")
			var all sync.WaitGroup
			going, stop := context.WithCancel(t.Context())
			all.Go(func() { x.publishes(going, p) })
			all.Go(func() { x.acknowledges(going, s, p) })
			all.Go(func() {
				for going.Err() == nil {
					p.counts(false, nil)
					x.mode("t", storage.OffsetWatermark)
					before := p.answers()
					x.mode("t", storage.ReferenceCounting)
					p.counts(true, before)
				}
			})
			time.Sleep(time.Duration(5+rng.IntN(30)) * time.Millisecond)
			p.mu.Lock()
			disk := x.disk.PowerLoss(rng)
			missing, durable := map[int64]bool{}, map[int64]bool{}
			for at := range p.published {
				if !p.tried[at] {
					missing[at] = true
				}
			}
			for at := range p.durable {
				durable[at] = true
			}
			p.mu.Unlock()
			stop()
			all.Wait()
			x.stop()
			x.disk = disk
			x.start()
			s = x.attach("t", "g", "m")
			for len(missing) > 0 {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				e, err := s.Receive(ctx, 1000)
				cancel()
				if err != nil {
					t.Fatalf("%d messages are missing: %v", len(missing), err)
				}
				for _, g := range read(t, e.Deliveries) {
					if durable[g.position] {
						t.Fatalf("position %d comes again", g.position)
					}
					delete(missing, g.position)
				}
				s.AddCredits(&topicv1.Credits{Messages: 10_000, Bytes: 8 << 20})
			}
		})
	}
}

func (x *fixture) publishes(ctx context.Context, p *promises) {
	for ctx.Err() == nil {
		r, err := x.Publish(x.t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: messages(0, 3)})
		if err != nil {
			x.t.Error(err)
			return
		}
		p.mu.Lock()
		for _, m := range r.GetResults() {
			p.published[m.GetPosition()] = true
		}
		p.mu.Unlock()
	}
}

// acknowledges two of three messages, one by one.
func (x *fixture) acknowledges(ctx context.Context, s *Session, p *promises) {
	for {
		e, err := s.Receive(ctx, 100)
		if err != nil {
			return
		}
		for _, g := range read(x.t, e.Deliveries) {
			if g.position%3 == 0 {
				continue
			}
			p.mu.Lock()
			counting := p.counting
			p.tried[g.position] = true
			p.mu.Unlock()
			x.ack(s, []got{g})
			p.mu.Lock()
			p.answered[g.position] = true
			if counting && p.counting {
				p.durable[g.position] = true
			}
			p.mu.Unlock()
		}
	}
}

// HQ-T5: a topic becomes one of groups and a queue again while messages are published and
// consumed: the queue's consumers get each message once, the group each that was published
// while it was subscribed, and another topic does not notice.
func TestSemanticsChangeUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("q", nil)
		x.configure("other", nil)
		going, stop := context.WithCancel(t.Context())
		var published atomic.Int64
		var all sync.WaitGroup
		all.Go(func() {
			for going.Err() == nil {
				n := int(published.Load())
				x.publish("q", n, 1)
				x.publish("other", n, 1)
				published.Add(1)
				time.Sleep(time.Millisecond)
			}
		})
		worker := func(topic, group string) *[]string {
			s, list := x.attach(topic, group, "m"), &[]string{}
			all.Go(func() {
				for {
					e, err := s.Receive(going, 100)
					if err != nil || e.Gone != "" {
						return
					}
					had := read(t, e.Deliveries)
					refused, err := s.Ack(t.Context(), at(had))
					if err != nil && strings.Contains(err.Error(), "SUBSCRIPTION_GONE") {
						return // the change ended the group: they come again
					}
					if err != nil || len(refused) > 0 {
						t.Error(refused, err)
						return
					}
					for _, g := range had {
						*list = append(*list, g.payload)
					}
					s.AddCredits(&topicv1.Credits{Messages: int64(len(had)), Bytes: 1 << 20})
				}
			})
			return list
		}
		queue, other := worker("q", ""), worker("other", "")
		pause := func() { time.Sleep(100 * time.Millisecond) }
		pause()
		var groups []*[]string
		for range 3 {
			if err := x.semantics("q", storage.PubSub); err != nil {
				t.Fatal(err)
			}
			pause()
			x.subscribe("q", "g", nil)
			groups = append(groups, worker("q", "g"))
			pause()
			refusedAs(t, x.semantics("q", storage.Queue), refusal.InvalidTransition)
			if _, err := x.Cancel(t.Context(), op, "q", "g"); err != nil {
				t.Fatal(err)
			}
			if err := x.semantics("q", storage.Queue); err != nil {
				t.Fatal(err)
			}
			pause()
		}
		time.Sleep(time.Second)
		stop()
		all.Wait()
		want := strings.Fields(numbers(0, int(published.Load())))
		for name, list := range map[string][]string{"the queue": *queue, "another topic": *other} {
			if !slices.Equal(list, want) && !slices.Equal(list, want[:max(0, len(want)-1)]) {
				t.Errorf("%s received %d of %d", name, len(list), len(want))
			}
		}
		for i, list := range groups {
			if len(*list) < 50 || !slices.Equal(*list, want[slices.Index(want, (*list)[0]):][:len(*list)]) {
				t.Errorf("group %d received %q", i, *list)
			}
		}
	})
}

// stopping fails all writes from a number on, as of a process that ends there.
type stopping struct {
	store.Store
	left *atomic.Int64 // negative: no end
}

func (s stopping) ends() bool {
	for {
		n := s.left.Load()
		if n <= 0 || s.left.CompareAndSwap(n, n-1) {
			return n == 0
		}
	}
}

func (s stopping) Transact(ctx context.Context, p store.Plan) error {
	if s.ends() {
		return store.ErrUnavailable
	}
	return s.Store.Transact(ctx, p)
}

func (s stopping) BatchWrite(ctx context.Context, w []store.Write) error {
	if s.ends() {
		return store.ErrUnavailable
	}
	return s.Store.BatchWrite(ctx, w)
}

// HQ-T2, HQ-T5: groups that have ended leave the queue what not all of them acknowledged,
// with its gaps, and nothing else; wherever the process ends meanwhile, the call that is
// repeated comes to the same.
func TestQueueBeginsWithTheRest(t *testing.T) {
	for writes := int64(0); ; writes++ {
		done := false
		bubble(t, func(t *testing.T, x *fixture) {
			left := &atomic.Int64{}
			left.Store(-1)
			x.wrap = func(s store.Store) store.Store { return stopping{s, left} }
			x.restart()
			x.groups("t", "a", "b")
			x.publish("t", 0, 10)
			for g, acked := range map[string][]int{"a": {0, 1, 2, 3}, "b": {0, 1, 5}} {
				s := x.attach("t", g, "m")
				had := x.want(s, numbers(0, 10))
				for _, i := range acked {
					x.ack(s, had[i:i+1])
				}
				if _, err := x.Cancel(t.Context(), op, "t", g); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
			left.Store(writes)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			_, err := x.Configure(ctx, op, &topicv1.ConfigureTopicRequest{
				Topic: "t", Config: &topicv1.TopicConfig{Semantics: storage.Queue}})
			cancel()
			done = err == nil
			disk := x.disk.PowerLoss(rand.New(rand.NewPCG(uint64(writes), 1)))
			left.Store(-1)
			x.stop()
			x.disk = disk
			x.start()
			if err := x.semantics("t", storage.Queue); err != nil {
				t.Fatal(err)
			}
			x.publish("t", 10, 1)
			s := x.attach("t", "", "m")
			x.ack(s, x.want(s, "4 6 7 8 9 10"))
			if d, err := x.Topic(t.Context(), op, "t"); err != nil || d.GetPartitions()[0].GetWatermark() != 11 {
				t.Errorf("%v, %v", d, err)
			}
		})
		if done || t.Failed() {
			t.Logf("%d writes", writes)
			return
		}
	}
}

// A dry run says what would change, and what would be refused, and changes nothing.
func TestConfigureDryRun(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		ask := &topicv1.ConfigureTopicRequest{Topic: "t", DryRun: true,
			Config: &topicv1.TopicConfig{CompletionMode: storage.OffsetWatermark, MessageRetention: seconds(60)}}
		before, calls := x.Service.engine.Catalog.Topic("t").View(), x.audit.count("ConfigureTopic")
		r, err := x.Configure(t.Context(), op, ask)
		if err != nil || len(r.GetEffects()) != 2 || r.GetCreated() ||
			r.GetTopic().GetConfig().GetCompletionMode() != storage.OffsetWatermark {
			t.Errorf("%v, %v", r, err)
		}
		ask.Config = &topicv1.TopicConfig{Semantics: storage.Queue}
		_, err = x.Configure(t.Context(), op, ask)
		refusedAs(t, err, refusal.InvalidTransition)
		ask.Config = &topicv1.TopicConfig{Partitions: 7}
		_, err = x.Configure(t.Context(), op, ask)
		refusedAs(t, err, refusal.InvalidArgument)
		ask.Etag = "x"
		_, err = x.Configure(t.Context(), op, ask)
		refusedAs(t, err, refusal.TopicExists)
		_, err = x.Configure(t.Context(), nobody, ask)
		refusedAs(t, err, refusal.TopicForbidden)
		if x.Service.engine.Catalog.Topic("t").View() != before || x.audit.count("ConfigureTopic") != calls {
			t.Error("a dry run changed something")
		}
		ask = &topicv1.ConfigureTopicRequest{Topic: "new", DryRun: true, Config: &topicv1.TopicConfig{Partitions: 3}}
		r, err = x.Configure(t.Context(), maker, ask)
		if err != nil || !r.GetCreated() || r.GetTopic().GetConfig().GetPartitions() != 3 ||
			x.engine.Catalog.Topic("new") != nil {
			t.Errorf("%v, %v", r, err)
		}
	})
}
