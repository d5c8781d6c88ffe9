package consume

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

// A round starts no record after 60 s, so it ends long before the group expels this member,
// 300 s after the start of a rebalance.
func TestTimeOfARound(t *testing.T) {
	r := newFixture(t, kafkatest.InProcess(t))
	if got := r.engine(nil).cfg.Round; got != 60*time.Second {
		t.Errorf("a round takes %v, expected 60 s", got)
	}
}

// A record blocks its handler until the round ends. After three times it becomes a dead
// letter. Neither the records behind it nor the others wait for it.
func TestRecordThatHangs(t *testing.T) {
	both(t, each, func(t *testing.T, r *fixture) {
		var values []string
		for i := range 60 {
			kind := "ok"
			if i == 10 {
				kind = "hang"
			}
			values = append(values, fmt.Sprintf("chat%d %s %d", i%7, kind, i))
		}
		r.publish(values...)
		e := r.engine(func(c *Config) {
			c.Round = 150 * time.Millisecond
			handle := c.Handle
			c.Handle = func(ctx context.Context, rec *kafka.Record) error {
				if strings.Contains(string(rec.Value), " hang ") {
					<-ctx.Done()
					return ctx.Err()
				}
				return handle(ctx, rec)
			}
		})
		r.until(e, "all handled", func() bool { return len(r.calls) == len(values)-1 && len(r.dead) == 1 })
		for v, d := range r.dead {
			if !strings.Contains(v, " hang ") || d.Attempts != 3 {
				t.Errorf("%s is a dead letter after %d attempts, expected only the hanging record after 3", v, d.Attempts)
			}
		}
	})
}

// faulty returns a fixture on brokers whose answers a test can replace by errors.
func faulty(t *testing.T) (*fixture, *kfake.Cluster) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	a, err := kafka.NewAdmin(kafka.Cluster{Brokers: c.ListenAddrs()})
	testkit.Must(t, err)
	defer a.Close()
	if _, err := a.Apply(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	r := newFixture(t, kafkatest.InProcess(t)) // for its names and its store
	r.addr = strings.Join(c.ListenAddrs(), ",")
	return r, c
}

// A commit that brokers refuse temporarily is retried: the next process gets no record
// twice.
func TestCommitIsRepeated(t *testing.T) {
	r, c := faulty(t)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.CoordinatorNotAvailable, Count: 3})
	r.publish("a ok 1", "b ok 2")
	e := r.engine(nil)
	r.until(e, "committed", func() bool { return len(r.calls) == 2 && e.Stats().Commits > 0 })
	r.publish("a ok 3")
	r.until(r.engine(nil), "the third", func() bool { return r.calls["a ok 3"] == 1 })
	for v, n := range r.calls {
		if n != 1 {
			t.Errorf("%s was handled %d times, expected once", v, n)
		}
	}
}

// A topic is deleted and created again while a consumer reads it. The consumer detects that by
// itself and reads the new topic from its beginning.
func TestTopicIsRecreated(t *testing.T) {
	alongside(t)
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		r := newFixture(t, b)
		admin, name, replicas := r.admin(), b.Name("again"), int16(min(b.Brokers(), 3))
		if b.Cluster != nil { // which does not delete topics
			c, err := kfake.NewCluster(kfake.NumBrokers(1))
			testkit.Must(t, err)
			t.Cleanup(c.Close)
			r.addr = strings.Join(c.ListenAddrs(), ",")
			reader, err := kafka.NewReader(r.addr)
			testkit.Must(t, err)
			t.Cleanup(reader.Close)
			admin = kadm.NewClient(reader)
		}
		create := func() {
			t.Helper()
			r.await("the topic", func() bool {
				_, err := admin.CreateTopic(t.Context(), 4, replicas, nil, name)
				return err == nil
			})
		}
		publish := func(v string) {
			t.Helper()
			p, err := kafka.NewPublisher(r.addr, b.Name("publisher"))
			testkit.Must(t, err)
			defer p.Close()
			r.await("published", func() bool {
				return p.Publish(t.Context(), []*kafka.Record{{Topic: name, Partition: 1, Key: []byte("a"),
					Value: []byte(v)}}) == nil
			})
		}
		create()
		t.Cleanup(func() { _, _ = admin.DeleteTopics(context.Background(), name) })
		publish("a ok 1")
		publish("a ok 2")
		e := r.engine(func(c *Config) { c.Topics = []string{name} })
		stop := r.run(e)
		defer stop()
		r.await("the first records", func() bool { return len(r.calls) == 2 && e.Stats().Commits > 0 })
		if _, err := admin.DeleteTopics(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		create()
		publish("a ok 3")
		r.await("the record of the new topic", func() bool { return r.calls["a ok 3"] == 1 })
	})
}

// While a handler hangs, nothing is fetched. Lag still counts what Kafka has, and its age
// grows. Afterwards it is zero, whatever markers transactions have left.
func TestLagWhileAHandlerHangs(t *testing.T) {
	alongside(t)
	each(t, func(t *testing.T, r *fixture) {
		hanging, resume := make(chan struct{}), make(chan struct{})
		r.publish("a ok 0", "b ok 0", "c ok 0")
		var passed atomic.Int64
		e := r.engine(func(c *Config) {
			c.Clock = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
			handle := c.Handle
			c.Handle = func(ctx context.Context, rec *kafka.Record) error {
				if strings.Contains(string(rec.Value), " hang ") {
					close(hanging)
					<-resume
				}
				return handle(ctx, rec)
			}
		})
		stop := r.run(e)
		defer stop()
		r.await("the first records", func() bool { return len(r.calls) == 3 })
		r.publish("a hang 1")
		<-hanging
		for i := range 50 {
			r.publish(fmt.Sprintf("%c ok %d", 'a'+i%3, i+2))
		}
		r.await("what Kafka says of them", func() (seen bool) {
			e.mu.Lock()
			defer e.mu.Unlock()
			var unfetched int64
			for _, p := range e.partitions {
				unfetched += p.backlog.unfetched
			}
			return unfetched >= 50
		})
		// A record on its way is no lag. On a busy machine they may wait for long by now.
		if s := e.Stats(); s.Lag >= 50 && s.Oldest < 10*time.Second {
			t.Errorf("a lag of %d after %v", s.Lag, s.Oldest)
		}
		passed.Store(int64(10 * time.Second)) // after which what waits in the log is one
		r.await("the lag", func() bool { s := e.Stats(); return s.Lag >= 50 && s.Oldest >= 10*time.Second })
		close(resume)
		r.await("all records", func() bool { return len(r.calls) == 54 })
		r.await("no lag", func() bool { return e.Stats().Lag == 0 && e.Stats().Oldest == 0 })
	})
}
