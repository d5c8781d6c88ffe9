package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/relay/slot"
)

// site is an installation on real brokers: two processes with relays, and a group.
type site struct {
	t        *testing.T
	b        *kafkatest.Broker
	store    *storetest.Map
	serde    *event.Serde
	registry *registry.Registry
	chats    *chat.Service
	group    string

	mu       sync.Mutex
	sent     map[string]int64 // sequences, by chat
	seen     map[string]int64
	by       map[string]int // records by topic
	disorder []string
}

func newSite(t *testing.T, b *kafkatest.Broker) *site {
	t.Helper()
	s := &site{t: t, b: b, store: storetest.NewMap(time.Now), group: b.Name("migration"), sent: map[string]int64{}, seen: map[string]int64{}, by: map[string]int{}}
	s.registry = registry.New(s.store)
	ids, err := s.registry.Events(t.Context())
	s.must(err)
	s.serde, err = event.NewSerde(ids, s.registry.SubjectsOf)
	s.must(err)
	s.chats, err = chat.New(t.Context(), chat.Config{Store: s.store, Clock: time.Now, Generation: b.Name("g"), Producer: "p"})
	s.must(err)
	for _, u := range []string{"alice", "bob"} {
		s.must(s.chats.EnsureUser(t.Context(), u))
	}
	return s
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// work runs the relays and the consumer of a process until ctx ends.
func (s *site) work(ctx context.Context, name string) {
	m, err := slot.New(slot.Config{
		Store: s.store, Holder: name, Slots: 2, Logger: discard, TTL: 3 * time.Second,
		Start: func(ctx context.Context, sl slot.Slot) error {
			publisher, err := kafka.NewPublisher(s.b.Addr, s.b.Name(sl.TransactionalID))
			if err != nil {
				return err
			}
			defer publisher.Close()
			r, err := relay.New(relay.Config{
				Store: s.store, Serde: s.serde, Clock: time.Now, Logger: discard, Shards: sl.Shards, Sweep: 100 * time.Millisecond,
				Publish: publisher.Publish,
				Topics:  func(ctx context.Context) (versions.State, error) { return versions.Load(ctx, s.store) },
				Renew: func(ctx context.Context) error {
					return errors.Join(publisher.Renew(ctx), slot.Confirm(ctx, s.store, name, sl))
				},
				Report: func(ctx context.Context, revision int64) error { return slot.Report(ctx, s.store, name, sl, revision) },
			})
			if err != nil {
				return err
			}
			return r.Run(ctx)
		},
	})
	s.must(err)
	w, err := versions.NewWatch(ctx, s.store, discard)
	s.must(err)
	e, err := consume.New(consume.Config{
		Addr: s.b.Addr, Group: s.group, Consumer: name, Follow: w.Readable(kafka.MessagesPersisted), Store: s.store, Clock: time.Now, Logger: discard,
		WriteDeadLetter: func(context.Context, consume.DeadLetter) error { return nil }, Handle: s.handle,
	})
	s.must(err)
	var all sync.WaitGroup
	all.Go(func() { _ = m.Run(ctx) })
	all.Go(func() { _ = w.Run(ctx) })
	all.Go(func() { _ = e.Run(ctx) })
	all.Wait()
}

// handle demands that messages of a chat come in order, whichever topic they come from.
func (s *site) handle(_ context.Context, r *kafka.Record) error {
	_, sequence, ok := s.message(r)
	if !ok {
		return nil // another run's
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := string(r.Key)
	if sequence > s.seen[id]+1 {
		s.disorder = append(s.disorder, fmt.Sprintf("%s: message %d came after %d, from %s", id, sequence, s.seen[id], r.Topic))
	}
	s.seen[id] = max(s.seen[id], sequence)
	s.by[r.Topic]++
	return nil
}

func (s *site) message(r *kafka.Record) (event.Event, int64, bool) {
	e, err := event.Unmarshal(event.TypeMessagePersisted, r.Value[6:])
	if err != nil || e.GetMetadata().GetGeneration() != s.b.Name("g") {
		return nil, 0, false
	}
	type message interface{ GetSequence() int64 }
	return e, e.(message).GetSequence(), true
}

func (s *site) send(ctx context.Context, ids []string) {
	for ctx.Err() == nil {
		id := ids[rand.N(len(ids))]
		sent, err := s.chats.Send(context.WithoutCancel(ctx), chat.Send{Caller: "alice", ChatID: id, Content: "x"})
		if err != nil {
			s.t.Error(err) // nobody who sends is refused
			return
		}
		s.mu.Lock()
		s.sent[id] = max(s.sent[id], sent.Sequence)
		s.mu.Unlock()
		time.Sleep(time.Duration(rand.N(4)) * time.Millisecond)
	}
}

// On real brokers, with processes that end and begin in every phase, everything that is
// sent comes, in order, first from the old topic and then from the new one.
func TestOnBrokers(t *testing.T) { kafkatest.Each(t, onBrokers) }

func onBrokers(t *testing.T, b *kafkatest.Broker) {
	s := newSite(t, b)
	next := versions.Name(kafka.MessagesPersisted, 2)
	admin := kadm.NewClient(b.Client(t, kgo.MetadataMinAge(100*time.Millisecond)))
	if b.Embedded == nil { // an earlier run's
		_, _ = admin.DeleteTopics(t.Context(), next)
		time.Sleep(2 * time.Second)
		t.Cleanup(func() { _, _ = admin.DeleteTopics(context.Background(), next) })
	}
	live := &Live{
		Store: s.store, Addr: b.Addr, Registry: s.registry, Groups: []string{s.group}, Durable: func(context.Context) error { return nil },
		AddTopic: func(ctx context.Context, topic kafka.Topic, like string) error {
			if b.Embedded != nil {
				return b.Embedded.Add(ctx, topic)
			}
			a, err := kafka.NewAdmin(kafka.Cluster{Brokers: strings.Split(b.Addr, ",")})
			if err != nil {
				return err
			}
			defer a.Close()
			return a.Create(ctx, topic, like)
		},
	}
	m, err := New(Config{Store: s.store, Cluster: live, Clock: time.Now, Logger: discard, Poll: 50 * time.Millisecond})
	s.must(err)
	var ids []string
	for range 5 {
		c, err := s.chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		s.must(err)
		ids = append(ids, c.ChatID)
	}
	var sending, working sync.WaitGroup
	send, stopSending := context.WithCancel(t.Context())
	sending.Go(func() { s.send(send, ids) })
	steady, stopAll := context.WithCancel(t.Context())
	working.Go(func() { s.work(steady, b.Name("steady")) })
	// The other process ends and begins again, and whoever drives the migration with it.
	n := 0
	var stopOther context.CancelFunc
	restart := func() {
		if stopOther != nil {
			stopOther()
		}
		n++
		name := fmt.Sprint(b.Name("other"), n)
		var other context.Context
		other, stopOther = context.WithCancel(t.Context())
		working.Go(func() { s.work(other, name) })
	}
	restart()
	r := Request{Topic: kafka.MessagesPersisted, Partitions: 128, By: "ann", MaxFreeze: time.Minute, Ignore: s.others(admin)}
	for _, phase := range []versions.Phase{versions.Planned, versions.Created, versions.Frozen, versions.Quiet, versions.Drained, versions.Switched} {
		s.kill(m, r, phase)
		restart()
	}
	s.must(m.Run(t.Context(), r, func(Progress) error { return nil }))
	time.Sleep(time.Second)
	stopSending()
	sending.Wait()
	s.await(time.Now().Add(time.Minute))
	stopAll()
	stopOther()
	working.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.disorder) > 0 {
		t.Errorf("%d messages came before earlier ones: %v", len(s.disorder), s.disorder[0])
	}
	if s.by[kafka.MessagesPersisted] == 0 || s.by[next] == 0 {
		t.Errorf("messages by topic: %v", s.by)
	}
	t.Logf("messages by topic: %v", s.by)
}

// others are groups of other tests that read the topic.
func (s *site) others(admin *kadm.Client) (list []string) {
	if s.b.Embedded != nil {
		return nil
	}
	groups, err := admin.ListGroups(s.t.Context())
	s.must(err)
	list = slices.DeleteFunc(groups.Groups(), func(g string) bool { return g == s.group })
	return list[:min(len(list), MaxIgnored)]
}

// kill drives the migration until it is in a phase, and leaves it there as a process that
// is killed does: nothing is thawed.
func (s *site) kill(m *Migrator, r Request, phase versions.Phase) {
	s.t.Helper()
	ctx := s.t.Context()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		state, err := versions.Load(ctx, s.store)
		s.must(err)
		if state.Move != nil && state.Move.Phase == phase {
			return
		}
		if _, p, err := m.step(ctx, state, r); err != nil {
			s.t.Fatalf("on the way to %s: %v (%+v)", phase, err, p)
		}
	}
	s.t.Fatalf("the migration does not come to %s", phase)
}

// await waits until the group has seen all that was sent.
func (s *site) await(deadline time.Time) {
	s.t.Helper()
	for ; ; time.Sleep(50 * time.Millisecond) {
		s.mu.Lock()
		left := 0
		for id, n := range s.sent {
			if s.seen[id] < n {
				left++
			}
		}
		s.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("messages of %d chats never came", left)
		}
	}
}
