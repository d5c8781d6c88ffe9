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
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/lease"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/relay/slot"
)

// brokersFixture is an installation on real brokers: two processes with relays, and a group.
type brokersFixture struct {
	t        *testing.T
	b        *kafkatest.Broker
	store    *storetest.Memory
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

func newBrokersFixture(t *testing.T, b *kafkatest.Broker) *brokersFixture {
	t.Helper()
	s := &brokersFixture{t: t, b: b, store: storetest.NewMemory(time.Now), group: b.Name("migration"),
		sent: map[string]int64{}, seen: map[string]int64{}, by: map[string]int{}}
	s.registry = registry.New(s.store)
	ids, err := s.registry.Events(t.Context())
	s.must(err)
	s.serde, err = event.NewSerde(ids, s.registry.SubjectsOf)
	s.must(err)
	s.chats, err = chat.New(t.Context(),
		chat.Config{Store: s.store, Clock: time.Now, Generation: b.Name("g"), Producer: "p"})
	s.must(err)
	for _, u := range []string{"alice", "bob"} {
		s.must(s.chats.EnsureUser(t.Context(), u))
	}
	return s
}

func (s *brokersFixture) must(err error) {
	s.t.Helper()
	testkit.Must(s.t, err)
}

// work runs the relays and the consumer of a process until ctx ends.
func (s *brokersFixture) work(ctx context.Context, name string) {
	const slots = 2
	m, err := lease.New(lease.Config{
		Store: s.store, Kind: slot.Kind, Holder: name, Slots: slots, Logger: discard, TTL: 3 * time.Second,
		Start: func(ctx context.Context, n int) error {
			sl := slot.Numbered(n, slots)
			publisher, err := kafka.NewPublisher(s.b.Addr, s.b.Name(sl.TransactionalID))
			if err != nil {
				return err
			}
			defer publisher.Close()
			r, err := relay.New(relay.Config{
				Store: s.store, Serde: s.serde, Clock: time.Now, Logger: discard, Shards: sl.Shards, Sweep: 100 * time.Millisecond,
				Publish: relay.Flatten(publisher.Publish),
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
	if ctx.Err() != nil {
		return // killed while it started
	}
	s.must(err)
	e, err := consume.New(consume.Config{
		Addr: s.b.Addr, Group: s.group, Consumer: name, Follow: w.Readable(kafka.MessagesPersisted), Store: s.store,
		Clock: time.Now, Logger: discard,
		WriteDeadLetter: func(context.Context, consume.DeadLetter) error { return nil }, Handle: s.handle,
	})
	s.must(err)
	var all sync.WaitGroup
	all.Go(func() { _ = m.Run(ctx, func() {}) })
	all.Go(func() { _ = w.Run(ctx, func() {}) })
	all.Go(func() { _ = e.Run(ctx, func() {}) })
	all.Wait()
}

// handle records messages of a chat that are out of order, whichever topic they are from.
func (s *brokersFixture) handle(_ context.Context, r *kafka.Record) error {
	_, sequence, ok := s.message(r)
	if !ok {
		return nil // another run's
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := string(r.Key)
	if sequence > s.seen[id]+1 {
		s.disorder = append(s.disorder,
			fmt.Sprintf("%s: message %d arrived after %d, from %s", id, sequence, s.seen[id], r.Topic))
	}
	s.seen[id] = max(s.seen[id], sequence)
	s.by[r.Topic]++
	return nil
}

func (s *brokersFixture) message(r *kafka.Record) (event.Event, int64, bool) {
	e, err := event.Unmarshal(event.TypeMessagePersisted, r.Value[6:])
	if err != nil || e.GetMetadata().GetGeneration() != s.b.Name("g") {
		return nil, 0, false
	}
	type message interface{ GetSequence() int64 }
	return e, e.(message).GetSequence(), true
}

func (s *brokersFixture) send(ctx context.Context, ids []string) {
	for ctx.Err() == nil {
		id := ids[rand.N(len(ids))]
		sent, err := s.chats.Send(context.WithoutCancel(ctx), chat.Send{Caller: "alice", ChatID: id, Content: "x"})
		if err != nil {
			s.t.Errorf("a send failed during the migration: %v", err)
			return
		}
		s.mu.Lock()
		s.sent[id] = max(s.sent[id], sent.Sequence)
		s.mu.Unlock()
		time.Sleep(time.Duration(rand.N(4)) * time.Millisecond) // the rate of the load
	}
}

// On real brokers, with processes that end and restart in every phase, everything that is sent
// arrives in order, first from the old topic and then from the new one.
func TestOnBrokers(t *testing.T) {
	t.Parallel()
	kafkatest.Each(t, onBrokers)
}

func onBrokers(t *testing.T, b *kafkatest.Broker) {
	s := newBrokersFixture(t, b)
	next := versions.Name(kafka.MessagesPersisted, 2)
	admin := kadm.NewClient(b.Client(t, kgo.MetadataMinAge(100*time.Millisecond)))
	if b.Cluster == nil { // an earlier run may have left it
		_, _ = admin.DeleteTopics(t.Context(), next)
		testkit.Eventually(t, "the deletion of an earlier run's topic", func() bool {
			list, err := admin.ListTopics(t.Context())
			return err == nil && !list.Has(next)
		})
		t.Cleanup(func() { _, _ = admin.DeleteTopics(context.Background(), next) })
	}
	live := &Live{
		Store: s.store, Addr: b.Addr, Registry: s.registry, Groups: []string{s.group},
		AddTopic: func(ctx context.Context, topic kafka.Topic, like string) error {
			if b.Cluster != nil {
				return b.Add(topic)
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
	// The other process is restarted, and the driver of the migration with it.
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
	r := Request{Topic: kafka.MessagesPersisted, Partitions: 128, By: "ann", MaxFreeze: time.Minute,
		Ignore: s.others(admin)}
	for _, phase := range []versions.Phase{versions.Planned, versions.Created, versions.Frozen, versions.Quiet,
		versions.Drained, versions.Switched} {
		s.kill(m, r, phase)
		restart()
	}
	s.must(m.Run(t.Context(), r, func(Progress) error { return nil }))
	testkit.Eventually(t, "messages on the new topic", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.by[next] > 0
	})
	stopSending()
	sending.Wait()
	testkit.Eventually(t, "all sent messages", s.seenAll)
	stopAll()
	stopOther()
	working.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.disorder) > 0 {
		t.Errorf("%d messages are out of order, expected none; the first is %v", len(s.disorder), s.disorder[0])
	}
	if s.by[kafka.MessagesPersisted] == 0 || s.by[next] == 0 {
		t.Errorf("messages by topic: %v, expected some on both", s.by)
	}
	t.Logf("messages by topic: %v", s.by)
}

// others returns the groups of other tests that read the topic.
func (s *brokersFixture) others(admin *kadm.Client) (list []string) {
	if s.b.Cluster != nil {
		return nil
	}
	groups, err := admin.ListGroups(s.t.Context())
	s.must(err)
	list = slices.DeleteFunc(groups.Groups(), func(g string) bool { return g == s.group })
	return list[:min(len(list), MaxIgnored)]
}

// kill drives the migration until it is in a phase, and leaves it there like a killed process:
// nothing is thawed.
func (s *brokersFixture) kill(m *Migrator, r Request, phase versions.Phase) {
	s.t.Helper()
	ctx := s.t.Context()
	testkit.Eventually(s.t, fmt.Sprintf("the phase %s of the migration", phase), func() bool {
		state, err := versions.Load(ctx, s.store)
		s.must(err)
		if state.Move != nil && state.Move.Phase == phase {
			return true
		}
		if _, p, err := m.step(ctx, state, r); err != nil {
			s.t.Fatalf("before the phase %s: %v (%+v)", phase, err, p)
		}
		return false
	})
}

// seenAll reports whether the group has seen every message that was sent.
func (s *brokersFixture) seenAll() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range s.sent {
		if s.seen[id] < n {
			return false
		}
	}
	return true
}
