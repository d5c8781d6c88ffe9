package consume

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store/storetest"
)

// blocked makes a handler that blocks on records whose value contains a word.
func (r *fixture) blocked(word string, started chan<- string, resume <-chan struct{}) Handler {
	return func(ctx context.Context, rec *kafka.Record) error {
		if strings.Contains(string(rec.Value), word) {
			started <- string(rec.Value)
			<-resume
		}
		return r.handle(ctx, rec)
	}
}

// A member that is expelled while it works keeps nothing. What it finishes is not committed,
// because the next member has continued meanwhile. What else it had fetched is not handled when
// it is a member again (K-113, K-110, K-111).
func TestLostPartitions(t *testing.T) {
	both(t, ofMembers, func(t *testing.T, r *fixture) {
		started, resume := make(chan string, 10), make(chan struct{})
		first := r.engine(func(c *Config) {
			c.Handle, c.Consumer, c.Expiry = r.blocked("slow", started, resume), "first", 6*time.Second
			if r.batch {
				c.Batch = together(c.Handle)
				c.Handle = nil
			}
		})
		stop := r.run(first)
		defer stop()
		r.publish("a slow 1")
		<-started
		r.publish("a ok 2", "a ok 3")
		r.expel(r.group)
		second := r.engine(func(c *Config) {
			c.Consumer, c.Expiry = "second", 6*time.Second
			// Otherwise it would isolate the suspects of the first member, and in one process
			// that waits until the first has no record in work.
			c.Store = storetest.NewMemory(time.Now)
		})
		stopSecond := r.run(second)
		defer stopSecond()
		r.await("the second member's turn", func() bool { return r.calls["a ok 3"] > 0 && second.Stats().Lag == 0 })
		r.await("its commit", func() bool { return second.Stats().Commits > 0 })
		at := r.committed(partitionOf("a"))
		close(resume)
		r.await("the end of the first member's round", func() bool { return r.calls["a slow 1"] == 2 })
		r.publish("a ok 4")
		r.await("the next record", func() bool { return r.calls["a ok 4"] > 0 })
		if now := r.committed(partitionOf("a")); now < at {
			t.Errorf("the committed offset went from %d to %d, expected it never to fall", at, now)
		}
		stopSecond()
		r.publish("a ok 5") // for the first one, now the only member
		r.await("the last record", func() bool { return r.calls["a ok 5"] > 0 })
		for v, n := range map[string]int{"a ok 2": 1, "a ok 3": 1, "a ok 5": 1} {
			if r.calls[v] != n {
				t.Errorf("%s was handled %d times, expected %d", v, r.calls[v], n)
			}
		}
	})
}

// A paused partition that is revoked and assigned again is fetched again, from its committed
// offset.
func TestPausedPartitionIsAssignedAgain(t *testing.T) {
	both(t, ofMembers, func(t *testing.T, r *fixture) {
		var down atomic.Bool
		down.Store(true)
		e := r.engine(func(c *Config) {
			c.Expiry = 6 * time.Second
			c.Handle = func(ctx context.Context, rec *kafka.Record) error {
				if down.Load() && string(rec.Value) == "a ok 2" {
					return Fail(Authoritative, "the store is unavailable", nil)
				}
				return r.handle(ctx, rec)
			}
		})
		stop := r.run(e)
		defer stop()
		r.publish("a ok 1", "a ok 2", "a ok 3")
		r.await("a paused partition", func() bool { return e.Stats().Pauses > 1 })
		r.expel(r.group)
		r.await("the return to the group", func() bool { return len(r.members(r.group)) > 0 })
		down.Store(false)
		r.publish("b ok 4")
		r.await("the records after the pause", func() bool { return r.calls["a ok 3"] > 0 && r.calls["b ok 4"] > 0 })
		for v, n := range r.calls {
			if n != 1 {
				t.Errorf("%s was handled %d times, expected once", v, n)
			}
		}
	})
}

// A second member gets some of the partitions. Those that stay are handled without a stall,
// with a record of them in work while the others are revoked (K-112).
func TestOthersContinueInARebalance(t *testing.T) {
	both(t, ofMembers, func(t *testing.T, r *fixture) {
		var mu sync.Mutex
		owner := map[int32][]string{} // by partition, without consecutive repetitions
		engine := func(name string) *Engine {
			return r.engine(func(c *Config) {
				c.Consumer, c.Expiry = name, 6*time.Second
				c.Handle = func(ctx context.Context, rec *kafka.Record) error {
					mu.Lock()
					if list := owner[rec.Partition]; len(list) == 0 || list[len(list)-1] != name {
						owner[rec.Partition] = append(list, name)
					}
					mu.Unlock()
					return r.handle(ctx, rec)
				}
			})
		}
		n := 0
		var sent []string
		send := func() {
			var values []string
			for k := range 40 {
				n++
				values = append(values, "key"+string(rune('a'+k%26))+string(rune('a'+k/26))+" ok "+time.Duration(n).String())
			}
			r.publish(values...)
			sent = append(sent, values...)
		}
		owners := func(name string) int {
			mu.Lock()
			defer mu.Unlock()
			count := 0
			for _, list := range owner {
				if list[len(list)-1] == name {
					count++
				}
			}
			return count
		}
		stop := r.run(engine("first"))
		defer stop()
		for owners("first") == 0 {
			send()
			time.Sleep(20 * time.Millisecond) // the rate of the load
		}
		stopSecond := r.run(engine("second"))
		defer stopSecond()
		for limit := time.Now().Add(time.Minute); owners("second") < 4; {
			send()
			if time.Now().After(limit) {
				t.Fatalf("the second member has %d partitions after a minute, expected at least 4", owners("second"))
			}
			time.Sleep(20 * time.Millisecond) // the rate of the load
		}
		r.await("all records", func() bool { return len(r.calls) == len(sent) })
		stayed := 0
		for part, list := range owner {
			if len(list) > 2 || (len(list) == 2 && list[0] != "first") {
				t.Errorf("partition %d had the owners %v, expected at most one change, from first to second", part, list)
			}
			if len(list) == 1 && list[0] == "first" {
				stayed++
			}
		}
		if stayed == 0 {
			t.Error("no partition stayed with the first member, expected some")
		}
		for _, v := range sent {
			if r.calls[v] != 1 {
				t.Errorf("%s was handled %d times, expected once", v, r.calls[v])
			}
		}
	})
}

// A broker that leads partitions and coordinates the group is killed in the middle of a backlog
// and restarted later: polls are retried, nothing is skipped or out of order, and nothing
// becomes a dead letter (K-121).
func TestBrokerFailover(t *testing.T) {
	b := kafkatest.Apache(t)
	r := newFixture(t, b)
	const keys, each = 60, 60
	var records []*kafka.Record
	for i := range keys * each {
		key := "chat" + string(rune('a'+i%keys/26)) + string(rune('a'+i%keys%26))
		records = append(records, &kafka.Record{
			Topic: topic, Partition: partitionOf(key), Key: []byte(key), Value: []byte{byte(i / keys)},
		})
	}
	r.publishRecords(records)
	coordinators := r.admin().FindGroupCoordinators(t.Context(), r.group)
	testkit.Must(t, coordinators.Error())
	victim := kafkatest.Process(coordinators[r.group].NodeID)

	var mu sync.Mutex
	next := map[string]byte{}
	handled := 0
	reached := make(chan struct{})
	resume := make(chan struct{})
	e := r.engine(func(c *Config) {
		c.Expiry = 6 * time.Second
		c.Handle = func(_ context.Context, rec *kafka.Record) error {
			mu.Lock()
			n, key := rec.Value[0], string(rec.Key)
			if n > next[key] {
				t.Errorf("%s: record %d arrived, expected at most %d", key, n, next[key])
			}
			next[key] = max(next[key], n+1)
			handled++
			half := handled == keys*each/4
			mu.Unlock()
			if half {
				close(reached)
				<-resume
			}
			return nil
		}
	})
	stop := r.run(e)
	defer stop()
	<-reached
	before := e.Stats().Commits
	b.Trouble(t, "kill", victim)
	restored := sync.OnceFunc(func() { b.Trouble(t, "start", victim) })
	defer restored()
	close(resume)
	if b.Brokers() == 1 {
		restored()
	}
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range next {
			if n < each {
				return false
			}
		}
		return len(next) == keys
	}
	testkit.Eventually(t, "all records", all)
	restored()
	want := map[int32]int64{}
	for _, rec := range records {
		want[rec.Partition] = max(want[rec.Partition], rec.Offset+1)
	}
	for limit := time.Now().Add(time.Minute); ; {
		missing := 0
		for p, next := range want {
			if r.committed(p) < next {
				missing++
				// A commit that failed is covered by that of the next records.
				r.publishRecords([]*kafka.Record{{Topic: topic, Partition: p, Key: []byte("last"), Value: []byte{0}}})
			}
		}
		if missing == 0 {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("%d partitions are not committed after a minute, expected all: %+v", missing, e.Stats())
		}
		time.Sleep(500 * time.Millisecond) // each round publishes: the consumer gets time to commit
	}
	if s := e.Stats(); s.DeadLettered != 0 || s.Skipped != 0 || s.Commits <= before {
		t.Errorf("%+v, expected no dead letters, none skipped, and more than %d commits", s, before)
	}
}
