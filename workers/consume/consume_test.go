package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// rig is a broker with records and a consumer whose handler does as their values
// say.
type rig struct {
	t      *testing.T
	broker *kafka.Broker
	addr   string
	store  store.Store

	mu    sync.Mutex
	calls map[string]int // by value
	order map[string][]string
	dead  map[string]Dead // by value
}

func newRig(t *testing.T) *rig {
	t.Helper()
	b, err := kafka.OpenBroker(kafka.BrokerConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return &rig{t: t, broker: b, addr: b.Addr(), store: dynamotest.Store(t, time.Now), calls: map[string]int{}, order: map[string][]string{}, dead: map[string]Dead{}}
}

const topic = kafka.ChatsCreated

// publish writes records; a value is "key kind number".
func (r *rig) publish(values ...string) {
	r.t.Helper()
	c, err := kafka.NewTransactional(r.addr, "test")
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	var records []*kafka.Record
	for _, v := range values {
		key, _, _ := strings.Cut(v, " ")
		records = append(records, &kafka.Record{
			Topic: topic, Partition: int32(event.Partition(key, 16)), Key: []byte(key), Value: []byte(v),
			Headers: []kafka.Header{{Key: "h", Value: []byte{0, 255}}},
		})
	}
	for chunk := range slices.Chunk(records, 1000) {
		if err := kafka.Transact(r.t.Context(), c, chunk); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) handle(_ context.Context, rec *kafka.Record) error {
	v := string(rec.Value)
	r.mu.Lock()
	r.calls[v]++
	n := r.calls[v]
	r.order[string(rec.Key)] = append(r.order[string(rec.Key)], v)
	r.mu.Unlock()
	switch strings.Fields(v)[1] {
	case "permanent":
		return Fail(Permanent, "bad schema", errors.New("secret content"))
	case "unknown":
		return errors.New("secret content")
	case "panic":
		panic("secret content")
	case "twice":
		if n < 3 {
			return errors.New("not yet")
		}
	case "downstream":
		return Fail(Downstream, "away", nil)
	case "store":
		if n < 4 {
			return Fail(Authoritative, "store is away", nil)
		}
	case "fatal":
		if n < 2 {
			return Fail(Fatal, "start anew", nil)
		}
	}
	return nil
}

func (r *rig) engine(change func(*Config)) *Engine {
	r.t.Helper()
	cfg := Config{
		Addr: r.addr, Group: "test", Consumer: "me", Topics: []string{topic}, Handle: r.handle, Store: r.store,
		Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Parallel: 4,
		Dead: func(_ context.Context, d Dead) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if _, twice := r.dead[string(d.Record.Value)]; twice {
				r.t.Errorf("%s was buried twice", d.Record.Value)
			}
			r.dead[string(d.Record.Value)] = d
			return nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

// until runs an engine until a condition holds.
func (r *rig) until(e *Engine, what string, ok func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 40*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			r.t.Fatalf("%s: the engine ended: %v, %+v", what, err, e.Stats())
		case <-tick.C:
		}
		r.mu.Lock()
		yes := ok()
		r.mu.Unlock()
		if yes {
			cancel()
			<-done
			return
		}
	}
}

func TestOutcomes(t *testing.T) {
	r := newRig(t)
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
}

// What was committed does not come again to the next process, and nothing is left
// out.
func TestRestartGoesOn(t *testing.T) {
	r := newRig(t)
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
}

// A record that makes the engine begin anew each time is a dead letter after three
// times, and what follows it is handled.
func TestFatal(t *testing.T) {
	r := newRig(t)
	r.publish("a ok 1", "a fatal 2", "a ok 3")
	fatal := 0
	for {
		e := r.engine(func(c *Config) {
			c.Handle = func(ctx context.Context, rec *kafka.Record) error {
				err := r.handle(ctx, rec)
				if strings.Contains(string(rec.Value), "fatal") {
					return Fail(Fatal, "start anew", nil)
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
}

// A dead letter that cannot be written holds the record back.
func TestDeadLetterBeforeCommit(t *testing.T) {
	r := newRig(t)
	r.publish("a permanent 1", "a ok 2", "b ok 3")
	failures := 0
	e := r.engine(func(c *Config) {
		write := c.Dead
		c.Dead = func(ctx context.Context, d Dead) error {
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
}

func TestDeadLetterIsTheRecordByteForByte(t *testing.T) {
	for _, rec := range []*kafka.Record{
		{Topic: topic, Partition: 3, Offset: 7, Key: []byte{0, 255}, Value: []byte("x"), Headers: []kafka.Header{{Key: "a", Value: nil}, {Key: "a", Value: []byte{1}}}},
		{Topic: topic, Key: nil, Value: []byte{}},
		{Topic: topic, Key: []byte{}, Value: nil},
	} {
		b, err := proto.Marshal(Dead{Record: rec, Group: "g", Reason: "r", At: time.Now(), Attempts: 1}.Message())
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
	r := newRig(t)
	c, err := kafka.NewProducer(r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write := Publisher(c, func(b []byte) ([]byte, error) { return append([]byte{0, 0, 0, 0, 9, 0}, b...), nil })
	d := Dead{Record: &kafka.Record{Topic: topic, Partition: 3, Offset: 7, Value: []byte("x")}, Group: "g", Consumer: "c", Reason: "permanent: bad", At: time.Now(), Attempts: 2}
	if err := write(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	reader, err := kafka.NewReader(r.addr, kafka.DeadLetters)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	reader.PollFetches(ctx).EachRecord(func(rec *kafka.Record) {
		var m eventv1.DeadLetter
		if err := proto.Unmarshal(rec.Value[6:], &m); err != nil || m.GetDlqMetadata().GetOriginalOffset() != 7 || m.GetDlqMetadata().GetProcessingAttempts() != 2 {
			t.Errorf("%v, %v", &m, err)
		}
		cancel()
	})
	if ctx.Err() != context.Canceled {
		t.Fatal("no dead letter came")
	}
}

// Lag is what has not been finished: of a partition that waits, everything from the
// record on that it waits for, and its age; nothing once all is done.
func TestLag(t *testing.T) {
	r := newRig(t)
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
		if s := e.Stats(); away.Load() && s.Held > 0 && s.Lag > 0 {
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
}
