package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/storetest"
)

// commitFixture is a broker in simulated time, or the log in a store, with one partition whose records have
// the offsets from 0 on. A value is "key kind".
type commitFixture struct {
	log    *storeLog // nil: a broker
	t      *testing.T
	addr   string
	dial   kafka.Option
	client *kgo.Client
}

// inLabs runs a test in simulated time with each kind of log.
func inLabs(t *testing.T, values []string, test func(t *testing.T, l *commitFixture)) {
	t.Helper()
	for name, lab := range map[string]func(*testing.T, []string) *commitFixture{
		"broker": newCommitFixture, "store": newStoreCommitFixture,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, lab(t, values)) })
		})
	}
}

func newStoreCommitFixture(t *testing.T, values []string) *commitFixture {
	t.Helper()
	l := &commitFixture{t: t, log: newStoreLog(t)}
	for _, v := range values {
		key, _, _ := strings.Cut(v, " ")
		testkit.Must(t, l.log.publish(t.Context(), &kafka.Record{Topic: topic, Key: []byte(key), Value: []byte(v)}))
	}
	return l
}

func newCommitFixture(t *testing.T, values []string) *commitFixture {
	t.Helper()
	network := &kfake.VirtualNetwork{}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ListenFn(network.Listen), kfake.SeedTopics(1, topic),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}))
	if err != nil {
		t.Fatal(err)
	}
	l := &commitFixture{t: t, addr: cluster.ListenAddrs()[0], dial: kgo.Dialer(network.DialContext)}
	l.client, err = kgo.NewClient(kgo.SeedBrokers(l.addr), l.dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.client.Close()
		cluster.Close()
	})
	var records []*kgo.Record
	for _, v := range values {
		key, _, _ := strings.Cut(v, " ")
		records = append(records, &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(v)})
	}
	if err := l.client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for i, r := range records {
		if r.Offset != int64(i) {
			t.Fatalf("record %d has offset %d", i, r.Offset)
		}
	}
	return l
}

// engine makes an engine that is a member of a group.
func (l *commitFixture) engine(group string, handle Handler, dead func(context.Context, DeadLetter) error) *Engine {
	l.t.Helper()
	cfg := Config{
		Addr: l.addr, Kafka: []kafka.Option{l.dial}, Group: group, Consumer: "me", Topics: []string{topic}, Handle: handle,
		WriteDeadLetter: dead,
		Store:           storetest.NewMemory(time.Now), Clock: time.Now, Logger: slog.New(slog.DiscardHandler),
	}
	if l.log != nil {
		cfg.Join = l.log.join
	}
	e, err := New(cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	return e
}

// committed is what a group has committed; 0 for nothing.
func (l *commitFixture) committed(group string) int64 {
	if l.log != nil {
		all, err := l.log.Committed(context.WithoutCancel(l.t.Context()), group)
		if err != nil {
			l.t.Error(err)
		}
		return all[kafka.Partition{Topic: topic}]
	}
	all, err := kadm.NewClient(l.client).FetchOffsets(context.WithoutCancel(l.t.Context()), group)
	if err != nil {
		l.t.Error(err)
	}
	o, _ := all.Lookup(topic, 0)
	return o.At
}

// deadLetters are n values of some keys, that are fine but for some.
func deadLetters(n int, not map[int]string) (values []string) {
	for i := range n {
		kind := not[i]
		if kind == "" {
			kind = "ok"
		}
		values = append(values, fmt.Sprintf("chat%d %s", i%7, kind))
	}
	return values
}

// After a dead letter of offset 103 the group has committed 104: not before the dead letter is
// written, not without it, and no more than that (K-105, K-145).
func TestCommitAfterADeadLetter(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint("letter fails=", fails), func(t *testing.T) {
			inLabs(t, deadLetters(110, map[int]string{103: "poison", 104: "waits"}), func(t *testing.T, l *commitFixture) {
				written := 0
				e := l.engine("g", func(_ context.Context, r *kafka.Record) error {
					switch {
					case strings.HasSuffix(string(r.Value), "poison"):
						return Fail(Permanent, "poison", nil)
					case strings.HasSuffix(string(r.Value), "waits"):
						return Fail(Authoritative, "the store is away", nil)
					}
					return nil
				}, func(_ context.Context, d DeadLetter) error {
					if at := l.committed("g"); at > 103 {
						t.Errorf("committed is %d before the letter is written", at)
					}
					if fails {
						return errors.New("kafka is away")
					}
					if d.Record.Offset != 103 {
						t.Errorf("a letter of %d", d.Record.Offset)
					}
					written++
					return nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				_ = e.Run(ctx, func() {})
				want, deadLetters := int64(104), 1
				if fails {
					want, deadLetters = 103, 0
				}
				if at := l.committed("g"); at != want || written != deadLetters {
					t.Errorf("committed is %d with %d letters, not %d", at, written, want)
				}
			})
		})
	}
}

// A consumer that ends at any record of a full batch has committed nothing beyond it, and
// what comes next begins there: no record is left out (K-106).
func TestEndAtEveryRecordOfABatch(t *testing.T) {
	const batch = 500
	for name, tt := range map[string]struct {
		step int64
		end  func(stop func()) error
	}{
		"fatal": {1, func(func()) error { return Fail(Fatal, "start again", nil) }},
		"stop":  {9, func(stop func()) error { stop(); return context.Canceled }},
	} {
		t.Run(name, func(t *testing.T) {
			inLabs(t, deadLetters(batch, nil), func(t *testing.T, l *commitFixture) {
				for bad := int64(0); bad < batch; bad += tt.step {
					l.endAt(fmt.Sprint("g", bad), bad, batch, tt.end)
				}
			})
		})
	}
}

// endAt runs a consumer that ends at a record, and then one that does not.
func (l *commitFixture) endAt(group string, bad, all int64, end func(stop func()) error) {
	l.t.Helper()
	var mu sync.Mutex
	handled := map[int64]bool{}
	run := func(ending bool) {
		ctx, stop := context.WithTimeout(l.t.Context(), time.Minute)
		defer stop()
		e := l.engine(group, func(_ context.Context, r *kafka.Record) error {
			mu.Lock()
			defer mu.Unlock()
			if ending && r.Offset == bad {
				return end(stop)
			}
			if handled[r.Offset] = true; !ending && int64(len(handled)) == all {
				time.AfterFunc(time.Second, stop) // once it is committed
			}
			return nil
		}, func(_ context.Context, d DeadLetter) error {
			l.t.Errorf("a letter of %d", d.Record.Offset)
			return nil
		})
		_ = e.Run(ctx, func() {})
	}
	run(true)
	if at := l.committed(group); at > bad || handled[bad] {
		l.t.Fatalf("committed is %d, and %d is not handled", at, bad)
	}
	run(false)
	if at := l.committed(group); at != all || int64(len(handled)) != all {
		l.t.Fatalf("it ended at %d: committed is %d in the end, %d records are handled", bad, at, len(handled))
	}
}

// A record that cannot be processed stops its partition for less than a second: whatever
// becomes of it, the records behind it come within that time (K-148).
func TestPoisonStopsNobodyForASecond(t *testing.T) {
	for kind, fail := range map[string]func() error{
		"permanent": func() error { return Fail(Permanent, "poison", nil) },
		"unknown":   func() error { return errors.New("poison") },
		"panic":     func() error { panic("poison") },
		"ignored":   func() error { return Fail(Ignored, "newer", nil) },
	} {
		t.Run(kind, func(t *testing.T) {
			inLabs(t, deadLetters(20, map[int]string{3: "poison"}), func(t *testing.T, l *commitFixture) {
				var mu sync.Mutex
				var met time.Time
				late := map[int64]time.Duration{} // behind the poison, same key and others
				tries := 0
				e := l.engine("g", func(_ context.Context, r *kafka.Record) error {
					mu.Lock()
					defer mu.Unlock()
					if r.Offset == 3 {
						if tries++; tries == 1 {
							met = time.Now()
						}
						return fail()
					}
					if r.Offset > 3 {
						late[r.Offset] = 0
						if !met.IsZero() {
							late[r.Offset] = time.Since(met)
						}
					}
					return nil
				}, func(context.Context, DeadLetter) error { return nil })
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_ = e.Run(ctx, func() {})
				if tries == 0 || len(late) != 16 || l.committed("g") != 20 {
					t.Fatalf("%d tries, %d records behind it, committed is %d", tries, len(late), l.committed("g"))
				}
				for offset, d := range late {
					if d >= time.Second {
						t.Errorf("%d came %v after the poison was met, which was tried %d times", offset, d, tries)
					}
				}
			})
		})
	}
}
