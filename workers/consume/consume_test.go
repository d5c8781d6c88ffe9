package consume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

func TestOutcomes(t *testing.T) {
	both(t, func(t *testing.T, r *fixture) {
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
		r.until(e, "all handled", func() bool {
			return len(r.calls) == len(values) && len(r.dead) == len(wantDead) && e.Stats().Skipped > 0
		})
		for v := range r.dead {
			if !wantDead[v] {
				t.Errorf("%s is a dead letter", v)
			}
		}
		for v, d := range r.dead {
			kind := strings.Fields(v)[1]
			if want := map[string]int{"permanent": 1, "unknown": 3, "panic": 3}[kind]; d.Attempts != want {
				t.Errorf("%s after %d attempts", v, d.Attempts)
			}
			if strings.Contains(d.Reason, "secret") || d.Reason == "" {
				t.Errorf("%s for reason %q", v, d.Reason)
			}
		}
		// First occurrences of a key's records come in their order.
		for key, seen := range r.order {
			last := -1
			first := map[string]bool{}
			for _, v := range seen {
				n := 0
				_, _ = fmt.Sscan(strings.Fields(v)[2], &n)
				if !first[v] && n < last {
					t.Fatalf("%s: %s after %d", key, v, last)
				}
				first[v] = true
				last = max(last, n)
			}
		}
	})
}

// What was committed does not come again to the next process, and nothing is left
// out.
func TestRestartContinues(t *testing.T) {
	both(t, func(t *testing.T, r *fixture) {
		r.publish("a ok 1", "b ok 2", "c ok 3")
		e := r.engine(nil)
		r.until(e, "first", func() bool { return len(r.calls) == 3 && e.Stats().Commits > 0 })
		before := maps.Clone(r.calls)
		r.publish("a ok 4")
		r.until(r.engine(nil), "second", func() bool { return r.calls["a ok 4"] > 0 })
		for v, n := range before {
			if r.calls[v] != n {
				t.Errorf("%s came %d times", v, r.calls[v])
			}
		}
	})
}

// A record that makes the engine start again each time is a dead letter after three
// times, and what follows it is handled.
func TestFatal(t *testing.T) {
	both(t, func(t *testing.T, r *fixture) {
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
			if err := e.Run(ctx); classOf(err) != Fatal {
				t.Fatal(err)
			}
			cancel()
			fatal++
		}
		if fatal != 2 || len(r.dead) != 1 || r.dead["a fatal 2"].Attempts != 3 {
			t.Fatalf("%d ends, dead %v", fatal, r.dead)
		}
	})
}

// A dead letter that cannot be written holds the record back.
func TestDeadLetterBeforeCommit(t *testing.T) {
	both(t, func(t *testing.T, r *fixture) {
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
					return errors.New("kafka is away")
				}
				return write(ctx, d)
			}
		})
		r.until(e, "both", func() bool { return r.calls["a ok 2"] > 0 && r.calls["b ok 3"] > 0 })
		if len(r.dead) != 1 || failures != 3 {
			t.Fatalf("%d dead, %d failures", len(r.dead), failures)
		}
	})
}

func TestDeadLetterIsTheRecordByteForByte(t *testing.T) {
	for _, rec := range []*kafka.Record{
		{Topic: topic, Partition: 3, Offset: 7, Key: []byte{0, 255}, Value: []byte("x"), Headers: []kafka.Header{{Key: "a", Value: nil}, {Key: "a", Value: []byte{1}}}},
		{Topic: topic, Key: nil, Value: []byte{}},
		{Topic: topic, Key: []byte{}, Value: nil},
	} {
		b, err := DeadLetter{Record: rec, Group: "g", Reason: "r", FailedAt: time.Now(), Attempts: 1}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		var m eventv1.DeadLetter
		if err := proto.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		o := m.GetOriginalRecord()
		if (o.Key == nil) != (rec.Key == nil) || (o.Value == nil) != (rec.Value == nil) || string(o.Key) != string(rec.Key) || string(o.Value) != string(rec.Value) || len(o.Headers) != len(rec.Headers) {
			t.Fatalf("%v became %v", rec, o)
		}
		for i, h := range o.Headers {
			if h.GetKey() != rec.Headers[i].Key || (h.Value == nil) != (rec.Headers[i].Value == nil) || string(h.Value) != string(rec.Headers[i].Value) {
				t.Fatalf("header %d became %v", i, h)
			}
		}
	}
}

func TestPublisherWritesToTheTopic(t *testing.T) {
	kafkatest.Each(t, publishesLetters)
}

func publishesLetters(t *testing.T, b *kafkatest.Broker) {
	mark := b.Mark(t, kafka.DeadLetters)
	c, err := kafka.NewProducer(b.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write := Publisher(c, func(b []byte) ([]byte, error) { return append([]byte{0, 0, 0, 0, 9, 0}, b...), nil })
	d := DeadLetter{Record: &kafka.Record{Topic: topic, Partition: 3, Offset: 7, Value: []byte("x")}, Group: "g", Consumer: "c", Reason: "permanent: bad", FailedAt: time.Now(), Attempts: 2}
	if err := write(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	b.Read(t, mark, func(rec *kafka.Record) bool {
		var m eventv1.DeadLetter
		if err := proto.Unmarshal(rec.Value[6:], &m); err != nil || m.GetDlqMetadata().GetOriginalOffset() != 7 || m.GetDlqMetadata().GetProcessingAttempts() != 2 {
			t.Errorf("%v, %v", &m, err)
		}
		return true
	})
}

// Lag is what has not been finished: of a partition that waits, everything from the
// record on that it waits for, and its age; nothing once all is done.
func TestLag(t *testing.T) {
	both(t, func(t *testing.T, r *fixture) {
		var away atomic.Bool
		away.Store(true)
		r.publish("a ok 1", "a ok 2", "a ok 3", "b ok 4")
		e := r.engine(func(c *Config) {
			c.Clock = func() time.Time { return time.Now().Add(time.Hour) }
			c.Handle = func(ctx context.Context, rec *kafka.Record) error {
				if string(rec.Value) == "a ok 2" && away.Load() {
					return Fail(Authoritative, "store is away", nil)
				}
				return r.handle(ctx, rec)
			}
		})
		r.until(e, "the partition waits, and then not", func() bool {
			if s := e.Stats(); away.Load() && s.Pauses > 0 && s.Lag > 0 {
				if s.Lag < 2 || s.Lag > 3 || s.Oldest < 59*time.Minute || s.Oldest > 61*time.Minute {
					t.Errorf("%+v", s)
				}
				away.Store(false)
			}
			return r.calls["a ok 3"] > 0 && e.Stats().Lag == 0
		})
		if away.Load() {
			t.Fatal("nothing was behind")
		}
	})
}
