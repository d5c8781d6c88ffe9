package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// brokerFixture is a fixture for a broker that may have other runs' records.
func brokerFixture(t *testing.T, b *kafkatest.Broker) *fixture {
	t.Helper()
	r := newFixture(t)
	r.run = b.Name("")[1:]
	return r
}

// Two relays are on one slot. The later fences the earlier, whose cycle fails and whose run
// ends. The log has every event, first occurrences in order (K-073, EV18).
func TestLaterRelayFencesTheEarlier(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		r, from, slot := brokerFixture(t, b), b.Mark(t), b.Name("parley-relay")
		ids := []string{r.group(), r.group()}
		a := r.onKafka(b, slot, nil)
		r.rest(a)
		r.send(ids[0])
		r.send(ids[1])
		next := r.onKafka(b, slot, nil)
		r.must(next.Cycle(r.ctx))

		// The stale relay continues, with nudges that arrived late.
		r.send(ids[0])
		for _, c := range r.commits[len(r.commits)-3:] {
			a.Nudge(c)
		}
		if err := a.Run(r.ctx); !errors.Is(err, kafka.ErrFenced) {
			t.Fatalf("the stale relay ended with %v, expected %v", err, kafka.ErrFenced)
		}
		r.rest(next)
		r.checkOutbox()
		r.readLog(b, from)
	})
}

// A relay stalls in the middle of a transaction, with everything produced and nothing
// committed, and another acquires its slot. When the first resumes, the end of its transaction
// and everything after it is refused: each event is in the log once (K-073).
func TestFrozenRelayIsFenced(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		r, from, slot := brokerFixture(t, b), b.Mark(t), b.Name("parley-relay")
		ids := []string{r.group(), r.group(), r.group()}
		frozen, thaw := make(chan struct{}), make(chan struct{})
		var once sync.Once
		var thawed error
		stale := r.onKafka(b, slot, func(cfg *Config, c *kafka.Client) {
			cfg.Clock = time.Now
			publish := cfg.Publish
			cfg.Publish = func(ctx context.Context, list []eventlog.Publication) error {
				records := Records(list)
				err := errors.New("not the first")
				once.Do(func() {
					if err = errors.Join(c.BeginTransaction(),
						c.ProduceSync(context.Background(), records...).FirstErr()); err != nil {
						return
					}
					close(frozen)
					<-thaw
					err = c.EndTransaction(context.Background(), kgo.TryCommit)
					thawed = err
				})
				if err != nil && errors.Is(err, thawed) {
					return err
				}
				return publish(ctx, list)
			}
		})
		ended := make(chan error, 1)
		go func() { ended <- stale.Run(context.WithoutCancel(r.ctx)) }()
		<-frozen
		next := r.onKafka(b, slot, nil)
		r.rest(next)
		r.checkOutbox()
		close(thaw)
		r.send(ids[0])
		for _, c := range r.commits { // it gets old nudges too
			stale.Nudge(c)
		}
		if err := <-ended; !errors.Is(err, kafka.ErrFenced) || thawed == nil {
			t.Fatalf("its transaction ended with %v and its run with %v, expected both to be fenced", thawed, err)
		}
		for _, id := range ids {
			r.send(id)
		}
		r.rest(next)
		r.checkOutbox()
		if n := r.readLog(b, from); n != r.events() {
			t.Fatalf("%d records, expected each of %d events once", n, r.events())
		}
	})
}

// errLost is what a relay gets when an answer is lost.
var errLost = errors.New("no answer came")

// holder is the relay of a slot's holder. Its transactions fail at random.
type holder struct {
	*Relay
	client *kafka.Client
	frozen bool // a transaction is open, and its relay believes that it failed
}

func (r *fixture) holder(b *kafkatest.Broker, slot string, rng *rand.Rand, calm *bool) *holder {
	h := &holder{}
	h.Relay = r.onKafka(b, slot, func(cfg *Config, c *kafka.Client) {
		h.client = c
		cfg.MaxBatch = 7
		cfg.Publish = Flatten(func(ctx context.Context, records []*kafka.Record) error {
			how := rng.IntN(8)
			if *calm || how > 3 {
				h.frozen = false
				return kafka.Transact(ctx, c, records)
			}
			if how == 0 { // committed, and the answer is lost
				h.frozen = false
				return errors.Join(kafka.Transact(ctx, c, records), errLost)
			}
			if err := c.EndTransaction(ctx, kgo.TryAbort); err != nil {
				return fmt.Errorf("%w: %w", kafka.ErrFenced, err)
			}
			if how == 1 { // aborted
				h.frozen = false
				return errLost
			}
			if err := c.BeginTransaction(); err != nil {
				return fmt.Errorf("%w: %w", kafka.ErrFenced, err)
			}
			if err := c.ProduceSync(context.WithoutCancel(ctx), records[:1+rng.IntN(len(records))]...).FirstErr(); err != nil {
				return fmt.Errorf("%w: %w", kafka.ErrFenced, err)
			}
			h.frozen = true
			if how == 2 {
				h.frozen = false
				return errors.Join(c.EndTransaction(ctx, kgo.TryAbort), errLost)
			}
			return errLost // in the middle
		})
	})
	return h
}

// Two processes hold one slot, one after the other, or both at once because the first has not
// noticed yet. They crash, within transactions too, and receive nudges late, twice or not at
// all. Transactions are aborted, committed without an answer, or stay open. In any case the
// log has every event, first occurrences in order of versions (K-072, K-073).
func TestRandomSchedulesOnBrokers(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		for seed := range uint64(4) {
			rng := rand.New(rand.NewPCG(seed, 11))
			r, from, slot := brokerFixture(t, b), b.Mark(t), b.Name(fmt.Sprint("parley-relay-", seed))
			r.run = fmt.Sprint(r.run, seed, "x")
			calm := false
			holders := []*holder{r.holder(b, slot, rng, &calm), r.holder(b, slot, rng, &calm)}
			ids := []string{r.group(), r.group(), r.group()}
			var late []chat.Commit
			fenced, crashes := 0, 0
			for range 150 {
				i := rng.IntN(2)
				h := holders[i]
				switch rng.IntN(10) {
				case 0, 1, 2, 3:
					r.send(ids[rng.IntN(3)])
					late = append(late, r.commits[len(r.commits)-1])
				case 4, 5:
					if len(late) > 0 {
						i := rng.IntN(len(late))
						h.Nudge(late[i])
						if rng.IntN(3) > 0 {
							late = append(late[:i], late[i+1:]...)
						}
					}
				case 6, 7, 8:
					err := h.Cycle(r.ctx)
					switch {
					case errors.Is(err, kafka.ErrFenced):
						fenced++
						holders[i] = r.holder(b, slot, rng, &calm)
					case err != nil && !errors.Is(err, errLost):
						t.Fatalf("seed %d: %v", seed, err)
					case err != nil:
						h.lastSweep = time.Time{}
					}
					r.now = r.now.Add(time.Duration(rng.IntN(700)) * time.Millisecond)
				case 9:
					switch {
					case h.frozen && rng.IntN(2) == 0: // it resumes; no relay waits for its records any more
						_ = h.client.EndTransaction(r.ctx, kgo.TryCommit)
						fallthrough
					case rng.IntN(3) == 0: // a crash
						crashes++
						h.client.Close()
						holders[i] = r.holder(b, slot, rng, &calm)
					}
				}
			}
			calm = true
			for _, h := range holders {
				h.lastSweep = time.Time{}
				if err := h.Cycle(r.ctx); err != nil && !errors.Is(err, kafka.ErrFenced) {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			r.rest(r.holder(b, slot, rng, &calm).Relay)
			r.checkOutbox()
			n := r.readLog(b, from)
			t.Logf("seed %d: %d events in %d records, %d times fenced, %d crashes", seed, r.events(), n, fenced, crashes)
		}
	})
}

// L-109: whatever a consumer reads is committed, and has no version that the store does not
// have.
func TestConsumersAreNeverAheadOfTheStore(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		r, from := brokerFixture(t, b), b.Mark(t)
		const chats = 40
		made := make(chan error, 1)
		re := r.onKafka(b, b.Name("parley-relay"), func(cfg *Config, _ *kafka.Client) { cfg.Clock = time.Now })
		ctx, stop := context.WithCancel(r.ctx)
		ended := make(chan error, 1)
		go func() { ended <- re.Run(ctx) }()
		r.nudge = re.Nudge
		go func() {
			var failed error
			for range chats {
				_, err := r.chats.CreateGroup(r.ctx, chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
				failed = errors.Join(failed, err)
			}
			made <- failed
		}()
		created, changed := 0, 0
		b.Read(t, from, func(rec *kafka.Record) bool {
			if len(rec.Key) < 5+len(r.run) || string(rec.Key[5:5+len(r.run)]) != r.run {
				return false
			}
			e, err := r.serde.Decode(context.Background(), rec.Key, rec.Value)
			r.must(err)
			head, err := r.store.Get(r.ctx, table.HeadKey(e.GetChatId()), store.Strong)
			r.must(err)
			if have, read := head.Get("version").Int64(), e.GetMetadata().GetVersion(); read > have || have == 0 {
				t.Fatalf("%s: version %d was read, the store has up to %d", e.GetChatId(), read, have)
			}
			switch event.TypeOf(e) {
			case event.TypeChatCreated:
				created++
			case event.TypeMembershipChanged:
				changed++
			}
			return created == chats && changed == chats
		})
		r.must(<-made)
		stop()
		<-ended
	})
}

// K-121, for producers: the broker that leads a chat's partition is killed while the relay
// publishes, then the coordinator of the relay's transactions. Nothing is lost, and first
// occurrences stay in order. This relies on acks=all and idempotence: the killed brokers lead
// again afterwards, with the records of the others.
func TestKilledBrokersLoseNothing(t *testing.T) {
	b := kafkatest.Apache(t)
	r, from, slot := brokerFixture(t, b), b.Mark(t), b.Name("parley-relay")
	ids := []string{r.group(), r.group(), r.group(), r.group()}
	admin := kadm.NewClient(b.Client(t))
	leader := func() int32 {
		partition := int32(event.Partition(ids[0], int(kafka.Partitions(kafka.MessagesPersisted))))
		topics, err := admin.ListTopics(r.ctx, kafka.MessagesPersisted)
		r.must(err)
		return topics[kafka.MessagesPersisted].Partitions[partition].Leader
	}
	coordinator := func() int32 {
		all := admin.FindTxnCoordinators(r.ctx, slot)
		return all[slot].NodeID
	}
	ctx, stop := context.WithCancel(r.ctx)
	defer stop()
	ended := make(chan struct{})
	restarts := 0
	var mu sync.Mutex
	var current *Relay
	go func() { // as the manager of slots does
		defer close(ended)
		for ; ctx.Err() == nil; restarts++ {
			re := r.onKafka(b, slot, func(cfg *Config, _ *kafka.Client) { cfg.Clock = time.Now })
			mu.Lock()
			current = re
			mu.Unlock()
			_ = re.Run(ctx)
		}
	}()
	r.nudge = func(c chat.Commit) {
		mu.Lock()
		defer mu.Unlock()
		if current != nil {
			current.Nudge(c)
		}
	}
	published := func() int64 {
		mu.Lock()
		defer mu.Unlock()
		if current == nil {
			return 0
		}
		return current.Stats().Published
	}
	// until sends on until something is so.
	until := func(what string, so func() bool) {
		t.Helper()
		for start := time.Now(); !so(); {
			if time.Since(start) > time.Minute {
				t.Fatalf("waited a minute for %s", what)
			}
			for _, id := range ids {
				r.send(id)
			}
			time.Sleep(20 * time.Millisecond) // the rate of the load
		}
	}
	until("the relay", func() bool { return published() > 100 })
	for i, victim := range []func() int32{leader, coordinator} {
		id := victim()
		if id < 0 {
			t.Fatalf("round %d has no broker to kill", i)
		}
		b.Trouble(t, "kill", kafkatest.Process(id))
		if b.Brokers() > 1 { // the others become leaders
			n := published()
			until("the remaining brokers", func() bool { p := published(); return p > n+100 || p < n })
		} else {
			until("rows that cannot be published", func() bool { return r.left() > 40 })
		}
		b.Trouble(t, "start", kafkatest.Process(id))
		n := published()
		until("the restarted broker", func() bool { p := published(); return p > n+100 || p < n })
	}
	testkit.Eventually(t, "an empty outbox", func() bool { return r.left() == 0 })
	stop()
	<-ended
	n := r.readLog(b, from)
	t.Logf("%d events in %d records, %d relays", r.events(), n, restarts)
}

// L-120, L-121, L-158: while Kafka is unavailable for ten minutes, users create groups and
// send with success; afterwards all of it is published, in order, each event once.
func TestTenMinutesWithoutTheLog(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	ids := []string{r.group(), r.group()}
	r.rest(re)
	down := errors.New("kafka is unavailable")
	r.fail = func() (error, error) { return down, nil }
	for until := r.now.Add(10 * time.Minute); r.now.Before(until); r.now = r.now.Add(maxWait) {
		if len(ids) < 20 {
			ids = append(ids, r.group())
		}
		for _, id := range ids {
			before := len(r.commits)
			r.send(id) // succeeds
			if len(r.commits) != before+1 {
				t.Fatalf("%d commits after a send, expected %d", len(r.commits), before+1)
			}
			re.Nudge(r.commits[before])
		}
		if err := re.Cycle(r.ctx); !errors.Is(err, down) {
			t.Fatalf("the cycle returned %v, expected %v", err, down)
		}
		re.lastSweep = time.Time{} // as Run does
	}
	r.fail = func() (error, error) { return nil, nil }
	r.rest(re)
	r.check(true)
	if len(r.log) != r.events() || len(r.log) < 2000 {
		t.Fatalf("%d records, expected each of %d events once, and at least 2000", len(r.log), r.events())
	}
	if head, err := r.store.Get(r.ctx, table.HeadKey(ids[0]), store.Strong); err != nil ||
		head.Get("version").Int64() != 122 {
		t.Fatalf("the chat's head is %v (%v), expected version 122", head, err)
	}
}
