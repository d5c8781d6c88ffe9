package topic_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/topictest"
)

// held counts the slots that each process serves.
func (c *cluster) held() map[string]int {
	all := map[string]int{}
	for _, n := range c.All() {
		if h := len(n.Services()); h > 0 {
			all[n.Name] = h
		}
	}
	return all
}

func (c *cluster) wantHeld(when string, want map[string]int) {
	c.t.Helper()
	synctest.Wait()
	testkit.Equal(c.t, when+": slots by process", fmt.Sprint(c.held()), fmt.Sprint(want))
}

// Slots are spread evenly over the processes. One that stops in order transfers its slots at
// once, with all that is in them; what was acknowledged does not come again.
func TestHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4)
		defer c.Close()
		a := c.Start("a")
		synctest.Wait()
		var names []string
		for i := range 12 {
			names = append(names, fmt.Sprintf("topic-%d", i))
			c.topic(names[i], "g")
			c.mustPublish(names[i], "acknowledged")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			k := c.consumer(names[i], "g")
			k.run(ctx)
			cancel()
			if !k.acknowledged["acknowledged"] {
				t.Fatalf("%s: nothing came", names[i])
			}
			c.mustPublish(names[i], "waits")
		}
		b := c.Start("b")
		testkit.Advance(time.Minute)
		c.wantHeld("two processes", map[string]int{"a": 2, "b": 2})
		began := time.Now()
		a.Stop()
		testkit.Must(t, b.Refresh(t.Context()))
		c.wantHeld("a has stopped", map[string]int{"b": 4})
		if took := time.Since(began); took > time.Second {
			t.Errorf("the handover took %v", took)
		}
		for _, name := range names {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			k := c.consumer(name, "g")
			k.run(ctx)
			cancel()
			if k.has("acknowledged") || k.received["waits"] != 1 {
				t.Errorf("%s: %v came after the handover, expected what was not acknowledged", name, k.received)
			}
		}
	})
}

// Slots of a process that dies are served again within 15 s, and not before its lease has run
// out; no two processes run the jobs of a topic (HQ-P18), and no other process loses a slot.
func TestFailover(t *testing.T) {
	for name, wakes := range map[string]bool{"killed": false, "hangs and wakes up": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 4)
				defer c.Close()
				a := c.Start("a")
				synctest.Wait()
				c.Start("b")
				testkit.Advance(time.Minute)
				var topics []string // those of a
				for i := 0; len(topics) < 2; i++ {
					name := fmt.Sprint("topic-", i)
					c.topic(name, "g")
					if _, leave, ok := a.Enter(storage.SlotOf(name, 4)); ok {
						leave()
						topics = append(topics, name)
						c.mustPublish(name, "before")
					}
				}
				a.Gate.Set(true)
				began := time.Now()
				for _, name := range topics {
					// a does not know yet, and hangs: nobody else takes its slots.
					if _, leave, ok := a.Enter(storage.SlotOf(name, 4)); !ok {
						t.Fatal("a has given its slot up at once")
					} else {
						leave()
					}
				}
				for len(c.held()) > 1 || c.held()["b"] < 4 {
					if time.Since(began) > 15*time.Second {
						t.Fatalf("after %v: %v", time.Since(began), c.held())
					}
					for slot := range 4 {
						_, leaveA, ofA := c.All()[0].Enter(slot)
						_, leaveB, ofB := c.All()[1].Enter(slot)
						if ofA && ofB {
							t.Fatalf("slot %d is served by both", slot)
						}
						if ofA {
							leaveA()
						}
						if ofB {
							leaveB()
						}
					}
					testkit.Advance(100 * time.Millisecond)
				}
				if took := time.Since(began); took < 5*time.Second {
					t.Errorf("the slots were taken after %v, while a may still have had them", took)
				}
				for _, name := range topics {
					c.mustPublish(name, "after")
					k := c.consumer(name, "g")
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					k.run(ctx)
					cancel()
					if !k.has("before") || !k.has("after") {
						t.Errorf("%s: received %v", name, k.received)
					}
				}
				if wakes {
					a.Gate.Set(false)
					testkit.Advance(time.Minute)
					c.wantHeld("a is back", map[string]int{"a": 2, "b": 2})
				}
			})
		})
	}
}

// An owner that does not know that another one has followed changes nothing: acknowledgements
// are refused, nothing is stored in the store or in the log, and what it had comes to the
// members of its successor.
func TestStaleOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := newCluster(t, 1)
		slot := storage.Slot{Number: 0, Of: 1}
		open := c.Open(&topictest.Gate{}, c.Store)
		begin := func() (*topic.Service, chan error) {
			s, _, err := open(ctx, slot)
			testkit.Must(t, err)
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx, func() {}) }()
			return s, ended
		}
		stale, staleEnded := begin()
		configure := func(s *topic.Service, name string) error {
			_, err := s.Configure(ctx, op, &topicv1.ConfigureTopicRequest{Topic: name,
				Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
			return err
		}
		subscribe := func(s *topic.Service, group string) error {
			_, err := s.CreateSubscription(ctx, op, &topicv1.CreateSubscriptionRequest{Topic: "t", Group: group})
			return err
		}
		publish := func(s *topic.Service, payload string) error {
			_, err := s.Publish(ctx, op, &topicv1.PublishRequest{Topic: "t",
				Messages: []*topicv1.TopicMessage{{Payload: []byte(payload)}}})
			return err
		}
		receive := func(s *topic.Service) (*topic.Session, []got) {
			in, err := s.Attach(ctx, op, &topicv1.Attach{Topic: "t", Group: "g"}, false)
			testkit.Must(t, err)
			e, err := in.Receive(ctx, 10)
			testkit.Must(t, err)
			return in, decode(t, e)
		}
		testkit.Must(t, configure(stale, "t"))
		testkit.Must(t, subscribe(stale, "g"))
		testkit.Must(t, publish(stale, "one"))
		old, had := receive(stale)
		testkit.Equal(t, "messages of the first owner", len(had), 1)

		next, nextEnded := begin()
		if err := publish(stale, "lost"); !errors.Is(err, commitlog.ErrFenced) {
			t.Errorf("a publish to an earlier owner: %v", err)
		}
		if _, err := old.Ack(ctx, &topicv1.AckSet{Positions: []*topicv1.Positions{had[0].at}}); !errors.Is(err,
			storage.ErrFenced) {
			t.Errorf("an acknowledgement to an earlier owner: %v", err)
		}
		for what, err := range map[string]error{
			"a new topic": configure(stale, "other"), "a changed topic": configure(stale, "t"),
			"a subscription": subscribe(stale, "h"),
			"a binding": stale.SetBinding(ctx, op, &topicv1.SetBindingRequest{Topic: "t", Principal: "p",
				Role: topicv1.Role_ROLE_ADMIN}),
			"a removal": stale.Delete(ctx, op, "t"),
		} {
			if err == nil {
				t.Errorf("%s was made by an earlier owner", what)
			}
		}
		ends(t, staleEnded)
		in, again := receive(next)
		if len(again) != 1 || again[0].payload != "one" {
			t.Errorf("the successor delivers %v, expected what was not acknowledged", again)
		}
		if _, err := in.Ack(ctx, &topicv1.AckSet{Positions: []*topicv1.Positions{again[0].at}}); err != nil {
			t.Errorf("an acknowledgement to the successor: %v", err)
		}
		// What the earlier owner tried does not stand in the store: a third one finds as much.
		third, thirdEnded := begin()
		list, err := third.Topics(ctx, op, &topicv1.ListTopicsRequest{})
		testkit.Must(t, err)
		testkit.Equal(t, "topics", len(list.GetTopics()), 1)
		if b, err := third.Bindings(ctx, op, "t"); err != nil || len(b) != 0 {
			t.Errorf("bindings %v, %v", b, err)
		}
		sub, err := third.Subscription(ctx, op, "t", "g")
		testkit.Must(t, err)
		if p := sub.GetPartitions()[0]; p.GetFloor() != 1 || p.GetEnd() != 1 {
			t.Errorf("floor %d, end %d, expected 1 and 1", p.GetFloor(), p.GetEnd())
		}
		testkit.Must(t, publish(third, "two"))
		_ = subscribe(next, "late") // it learns that it is an earlier one, too
		ends(t, nextEnded)
		_, err = storage.OpenCatalog(ctx, c.Store, time.Now, slot)
		testkit.Must(t, err)
		ends(t, thirdEnded) // by a write of its own, that of a heartbeat
	})
}

// ends expects that a service ends within minutes because it is fenced.
func ends(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, storage.ErrFenced) {
			t.Errorf("an earlier owner ended with %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("an earlier owner continues")
	}
}

// Topics and their dead letters are in one slot; all slots get about as many.
func TestSlotOf(t *testing.T) {
	count := make([]int, 16)
	for i := range 16_000 {
		name := fmt.Sprintf("orders.%d", i)
		n := storage.SlotOf(name, 16)
		count[n]++
		if storage.SlotOf(name+".dlq", 16) != n {
			t.Fatalf("%s and its dead letters are apart", name)
		}
	}
	for n, of := range count {
		if of < 800 || of > 1200 {
			t.Errorf("slot %d has %d topics of 16,000", n, of)
		}
	}
	if n, ok := storage.SessionSlot("7-12-ABC"); !ok || n != 7 {
		t.Errorf("a session of slot 7 leads to %d, %t", n, ok)
	}
	for _, id := range []string{"", "x", "-1-2-A", "12"} {
		if n, ok := storage.SessionSlot(id); ok {
			t.Errorf("%q leads to slot %d", id, n)
		}
	}
}

// The number of slots is that of the first process for good.
func TestSlotsAreFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4)
		a := c.Start("a")
		synctest.Wait()
		a.Stop()
		p, err := topic.NewSlotManager(topic.SlotManagerConfig{Store: c.Store, Process: "b", Slots: 8,
			Open: c.Open(&topictest.Gate{}, c.Store), Logger: slog.New(slog.DiscardHandler)})
		testkit.Must(t, err)
		err = p.Run(t.Context(), func() { t.Error("the process is ready") })
		if want := "the topics of this installation are in 4 slots, which cannot change, not in 8"; err == nil ||
			err.Error() != want {
			t.Errorf("%v, expected %s", err, want)
		}
	})
}

// A slot's topics are found by the list of the slot, whatever else there is, and so is the end
// of a removal that a process did not come to.
func TestSlotIsLoadedByItsList(t *testing.T) {
	ctx := t.Context()
	c := newCluster(t, 4)
	made := map[int]int{}
	open := func(n int, s store.Store) *storage.Catalog {
		cat, err := storage.OpenCatalog(ctx, s, time.Now, storage.Slot{Number: n, Of: 4})
		testkit.Must(t, err)
		return cat
	}
	numbers := map[uint64]string{}
	for n := range 4 {
		cat := open(n, c.Store)
		for i := range 40 {
			name := fmt.Sprint("topic-", i)
			_, _, err := cat.Create(ctx, name, storage.Settings{Config: &topicv1.TopicConfig{Partitions: 1}}, "admin")
			if storage.SlotOf(name, 4) != n {
				if err == nil {
					t.Errorf("slot %d took %s", n, name)
				}
				continue
			}
			testkit.Must(t, err)
			made[n]++
			if other := numbers[cat.Topic(name).Number]; other != "" {
				t.Errorf("%s and %s have one number", name, other)
			}
			numbers[cat.Topic(name).Number] = name
		}
	}
	for n := range 4 {
		reads := &counted{Store: c.Store}
		cat := open(n, reads)
		testkit.Equal(t, fmt.Sprint("topics of slot ", n), cat.Count(), made[n])
		if reads.scans > 0 || reads.queries != made[n]+1 {
			t.Errorf("%d topics took %d queries and %d scans", made[n], reads.queries, reads.scans)
		}
		if n > 0 {
			continue
		}
		first := cat.Topics("", 1, func(*storage.Topic) bool { return true })[0]
		changing := first.Changing()
		testkit.Must(t, cat.Deleting(ctx, first))
		testkit.Must(t, cat.Remove(ctx, first))
		changing.End()
		testkit.Equal(t, "topics after a removal", open(n, c.Store).Count(), made[n]-1)
	}
}

// counted counts reads.
type counted struct {
	store.Store
	mu             sync.Mutex
	queries, scans int
}

func (c *counted) Query(ctx context.Context, q store.Query) (store.Page, error) {
	c.mu.Lock()
	c.queries++
	c.mu.Unlock()
	return c.Store.Query(ctx, q)
}

func (c *counted) Scan(ctx context.Context, s store.Scan) (store.Page, error) {
	c.mu.Lock()
	c.scans++
	c.mu.Unlock()
	return c.Store.Scan(ctx, s)
}

// Processes start, stop in order, hang and wake up while messages are published and consumed.
// Every message that a publish was answered for comes to every group; none comes again that
// was acknowledged, and that the answer to which said so.
func TestChurn(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) { churn(t, rand.New(rand.NewPCG(seed, 18))) })
	}
}

func churn(t *testing.T, rng *rand.Rand) {
	c := newCluster(t, 3)
	defer c.Close()
	c.Start("n0")
	names := []string{"red", "green", "blue", "black"}
	ctx, cancel := context.WithCancel(t.Context())
	var published [4][]string // answered
	var wg sync.WaitGroup
	var consumers []*consumer
	for i, name := range names {
		c.topic(name, "g", "h")
		for _, group := range []string{"g", "h"} {
			k := c.consumer(name, group)
			consumers = append(consumers, k)
			wg.Go(func() { k.run(ctx) })
		}
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				payload := fmt.Sprintf("%s-%d", name, n)
				one, done := context.WithTimeout(ctx, 5*time.Second)
				if c.publish(one, name, payload) == nil {
					published[i] = append(published[i], payload)
				}
				done()
				time.Sleep(200 * time.Millisecond)
			}
		})
	}
	for n := 1; n < 25; n++ {
		c.mischief(rng, n)
		testkit.Advance(time.Duration(rng.IntN(6000)) * time.Millisecond)
	}
	for _, n := range c.All() {
		n.Gate.Set(false)
	}
	testkit.Advance(time.Minute)
	cancel()
	wg.Wait()
	total, attached := 0, int64(0)
	for i, name := range names {
		total += len(published[i])
		for _, k := range consumers {
			if k.topic != name {
				continue
			}
			attached += k.attached.Load()
			for _, payload := range published[i] {
				if !k.has(payload) {
					t.Errorf("%s was published and did not come to %s", payload, k.group)
				}
			}
			if len(k.again) > 0 {
				t.Errorf("%v came to %s again, after the acknowledgement was answered", k.again, k.group)
			}
		}
	}
	if total < 500 || attached < 20 {
		t.Errorf("%d messages, %d sessions: too few to show anything", total, attached)
	}
}

// mischief is a random thing that happens to a process. One stays that is well.
func (c *cluster) mischief(rng *rand.Rand, n int) {
	all := c.All()
	some := all[rng.IntN(len(all))]
	switch what := rng.IntN(6); {
	case what < 2 && len(all) < 4:
		c.Start(fmt.Sprint("n", n))
	case what == 2 && len(all) > 1:
		some.Gate.Set(false)
		some.Stop()
		c.Remove(some)
	case what < 5:
		some.Gate.Set(what != 3)
	}
}
