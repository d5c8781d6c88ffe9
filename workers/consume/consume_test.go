package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

func TestOutcomes(t *testing.T) {
	both(t, each, func(t *testing.T, r *fixture) {
		var values []string
		wantDead := map[string]bool{}
		for i := range 3000 {
			kind := "ok"
			if i%100 == 7 {
				kind = []string{"permanent", "unknown", "panic", "twice", "store"}[i/100%5]
			}
			if i == 1500 {
				kind = "downstream"
			}
			v := fmt.Sprintf("chat%d %s %d", i%47, kind, i)
			values = append(values, v)
			if kind == "permanent" || kind == "unknown" || kind == "panic" {
				wantDead[v] = true
			}
		}
		r.publish(values...)
		e := r.engine(nil)
		r.until(e, "all records", func() bool {
			return len(r.calls) == len(values) && len(r.dead) == len(wantDead) && e.Stats().Skipped > 0
		})
		for v := range r.dead {
			if !wantDead[v] {
				t.Errorf("%s is a dead letter, expected none", v)
			}
		}
		for v, d := range r.dead {
			kind := strings.Fields(v)[1]
			if want := map[string]int{"permanent": 1, "unknown": 3, "panic": 3}[kind]; d.Attempts != want {
				t.Errorf("%s is a dead letter after %d attempts, expected %d", v, d.Attempts, want)
			}
			if strings.Contains(d.Reason, "secret") || d.Reason == "" {
				t.Errorf("%s has the reason %q, expected one without content", v, d.Reason)
			}
		}
		// First occurrences of a key's records are in order.
		for key, seen := range r.order {
			last := -1
			first := map[string]bool{}
			for _, v := range seen {
				n := 0
				_, _ = fmt.Sscan(strings.Fields(v)[2], &n)
				if !first[v] && n < last {
					t.Fatalf("%s: %s after number %d, expected rising numbers", key, v, last)
				}
				first[v] = true
				last = max(last, n)
			}
		}
	})
}

// The next process gets no committed record again, and no record is skipped.
func TestRestartContinues(t *testing.T) {
	both(t, each, func(t *testing.T, r *fixture) {
		r.publish("a ok 1", "b ok 2", "c ok 3")
		e := r.engine(nil)
		r.until(e, "the first records", func() bool { return len(r.calls) == 3 && e.Stats().Commits > 0 })
		before := maps.Clone(r.calls)
		r.publish("a ok 4")
		r.until(r.engine(nil), "the next record", func() bool { return r.calls["a ok 4"] > 0 })
		for v, n := range before {
			if r.calls[v] != n {
				t.Errorf("%s was handled %d times, expected %d", v, r.calls[v], n)
			}
		}
	})
}

// A record that makes the engine restart each time becomes a dead letter after three times, and
// the records behind it are handled.
func TestFatal(t *testing.T) {
	both(t, each, func(t *testing.T, r *fixture) {
		r.publish("a ok 1", "a fatal 2", "a ok 3")
		fatal := 0
		for {
			e := r.engine(func(c *Config) {
				c.Handle = func(ctx context.Context, rec *kafka.Record) error {
					err := r.handle(ctx, rec)
					if strings.Contains(string(rec.Value), "fatal") {
						return Fail(Fatal, "start again", nil)
					}
					return err
				}
			})
			if fatal == 2 {
				r.until(e, "the record after it", func() bool { return r.calls["a ok 3"] > 0 })
				break
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if err := e.Run(ctx, func() {}); ClassOf(err) != Fatal {
				t.Fatalf("the engine ended with %v, expected a fatal failure", err)
			}
			cancel()
			fatal++
		}
		if fatal != 2 || len(r.dead) != 1 || r.dead["a fatal 2"].Attempts != 3 {
			t.Fatalf("%d restarts and the dead letters %v, expected 2 and a fatal 2 after 3 attempts", fatal, r.dead)
		}
	})
}

// A record is not committed while its dead letter cannot be written.
func TestDeadLetterBeforeCommit(t *testing.T) {
	both(t, each, func(t *testing.T, r *fixture) {
		r.publish("a permanent 1", "a ok 2", "b ok 3")
		failures := 0
		e := r.engine(func(c *Config) {
			write := c.WriteDeadLetter
			c.WriteDeadLetter = func(ctx context.Context, d DeadLetter) error {
				r.mu.Lock()
				failures++
				fail := failures < 3
				r.mu.Unlock()
				if fail {
					return errors.New("kafka is unavailable")
				}
				return write(ctx, d)
			}
		})
		r.until(e, "both records", func() bool { return r.calls["a ok 2"] > 0 && r.calls["b ok 3"] > 0 })
		if len(r.dead) != 1 || failures != 3 {
			t.Fatalf("%d dead letters and %d attempts to write one, expected 1 and 3", len(r.dead), failures)
		}
	})
}

func TestDeadLetterIsTheRecordByteForByte(t *testing.T) {
	for _, rec := range []*kafka.Record{
		{Topic: topic, Partition: 3, Offset: 7, Key: []byte{0, 255}, Value: []byte("x"),
			Headers: []kafka.Header{{Key: "a", Value: nil}, {Key: "a", Value: []byte{1}}}},
		{Topic: topic, Key: nil, Value: []byte{}},
		{Topic: topic, Key: []byte{}, Value: nil},
	} {
		b, err := DeadLetter{Record: rec, Group: "g", Reason: "r", FailedAt: time.Now(), Attempts: 1}.Encode()
		testkit.Must(t, err)
		var m eventv1.DeadLetter
		testkit.Must(t, proto.Unmarshal(b, &m))
		o := m.GetOriginalRecord()
		if (o.Key == nil) != (rec.Key == nil) || (o.Value == nil) != (rec.Value == nil) || string(o.Key) != string(rec.Key) ||
			string(o.Value) != string(rec.Value) || len(o.Headers) != len(rec.Headers) {
			t.Fatalf("the dead letter of %v has %v, expected the same bytes", rec, o)
		}
		for i, h := range o.Headers {
			if h.GetKey() != rec.Headers[i].Key || (h.Value == nil) != (rec.Headers[i].Value == nil) ||
				string(h.Value) != string(rec.Headers[i].Value) {
				t.Fatalf("header %d is %v, expected the same bytes", i, h)
			}
		}
	}
}

func TestPublisherWritesToTheTopic(t *testing.T) {
	kafkatest.Each(t, publishesDeadLetters)
}

func publishesDeadLetters(t *testing.T, b *kafkatest.Broker) {
	mark := b.Mark(t, kafka.DeadLetters)
	c, err := kafka.NewProducer(b.Addr)
	testkit.Must(t, err)
	defer c.Close()
	write := Publisher(c, func(b []byte) ([]byte, error) { return append([]byte{0, 0, 0, 0, 9, 0}, b...), nil })
	d := DeadLetter{Record: &kafka.Record{Topic: topic, Partition: 3, Offset: 7, Value: []byte("x")}, Group: "g",
		Consumer: "c", Reason: "permanent: bad", FailedAt: time.Now(), Attempts: 2}
	testkit.Must(t, write(t.Context(), d))
	b.Read(t, mark, func(rec *kafka.Record) bool {
		var m eventv1.DeadLetter
		if err := proto.Unmarshal(rec.Value[6:], &m); err != nil || m.GetDlqMetadata().GetOriginalOffset() != 7 ||
			m.GetDlqMetadata().GetProcessingAttempts() != 2 {
			t.Errorf("the dead letter is %v (%v), expected offset 7 and 2 attempts", &m, err)
		}
		return true
	})
}

// Lag counts the unfinished records: in a paused partition everything from the record that it
// waits for, with its age. It is zero when all are finished.
func TestLag(t *testing.T) {
	both(t, each, func(t *testing.T, r *fixture) {
		var down atomic.Bool
		down.Store(true)
		r.publish("a ok 1", "a ok 2", "a ok 3", "b ok 4")
		e := r.engine(func(c *Config) {
			c.Clock = func() time.Time { return time.Now().Add(time.Hour) }
			c.Handle = func(ctx context.Context, rec *kafka.Record) error {
				if string(rec.Value) == "a ok 2" && down.Load() {
					return Fail(Authoritative, "the store is unavailable", nil)
				}
				return r.handle(ctx, rec)
			}
		})
		r.until(e, "a pause and then no lag", func() bool {
			if s := e.Stats(); down.Load() && s.Pauses > 0 && s.Lag > 0 {
				if s.Lag < 2 || s.Lag > 3 || s.Oldest < 59*time.Minute || s.Oldest > 61*time.Minute {
					t.Errorf("%+v, expected a lag of 2 or 3 that is an hour old", s)
				}
				down.Store(false)
			}
			return r.calls["a ok 3"] > 0 && e.Stats().Lag == 0
		})
		if down.Load() {
			t.Fatal("the partition had no lag, expected some")
		}
	})
}

// When the topics that an engine follows change, it reads the new ones, and nothing of the others
// twice. An engine that takes them over finds no crash of its predecessor.
func TestFollow(t *testing.T) {
	both(t, each, func(t *testing.T, r *fixture) {
		var topics atomic.Pointer[[]string]
		topics.Store(&[]string{topic})
		log := &lines{}
		follow := func(c *Config) {
			c.Topics, c.Follow = nil, func() []string { return *topics.Load() }
			c.Logger = slog.New(slog.NewTextHandler(log, nil))
		}
		r.publish("a ok 1", "b ok 2")
		e := r.engine(follow)
		stop := r.run(e)
		r.await("the first records", func() bool { return len(r.calls) == 2 && e.Stats().Commits > 0 })
		r.publishRecords([]*kafka.Record{{Topic: kafka.MessagesPersisted, Partition: 1, Key: []byte("c"),
			Value: []byte("c ok 3")}})
		topics.Store(&[]string{topic, kafka.MessagesPersisted})
		r.await("the record of the other topic", func() bool { return r.calls["c ok 3"] > 0 })
		r.publish("a ok 4")
		r.await("the next record", func() bool { return r.calls["a ok 4"] > 0 })
		stop()
		r.publish("a ok 5")
		r.until(r.engine(follow), "the last record", func() bool { return r.calls["a ok 5"] > 0 })
		for v, n := range r.calls {
			if n != 1 {
				t.Errorf("%s was handled %d times, expected once", v, n)
			}
		}
		if n := log.count("without releasing"); n > 0 {
			t.Errorf("a crash was found %d times, expected none", n)
		}
	})
}
