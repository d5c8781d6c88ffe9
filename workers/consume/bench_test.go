package consume

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/storetest"
)

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Events of 300 chats, decoded and checked, with one lane and with sixteen a
// partition; and with a handler that waits 1 ms, as for an answer. b.N records.
func BenchmarkConsume(b *testing.B) {
	for _, wait := range []time.Duration{0, time.Millisecond} {
		for _, lanes := range []int{1, 16} {
			b.Run(fmt.Sprintf("wait=%s/lanes=%d", wait, lanes), func(b *testing.B) {
				broker, err := kafka.OpenBroker(kafka.BrokerConfig{Dir: b.TempDir(), Listen: "127.0.0.1:0"})
				if err != nil {
					b.Fatal(err)
				}
				defer broker.Close()
				r := &rig{addr: broker.Addr(), store: storetest.NewMap(time.Now)}
				p := newPoisoner(b, r)
				c, err := kafka.NewTransactional(r.addr, "bench")
				if err != nil {
					b.Fatal(err)
				}
				defer c.Close()
				for at := 0; at < b.N; {
					var records []*kafka.Record
					for ; at < b.N && len(records) < 1000; at++ {
						records = append(records, p.record(fmt.Sprintf("chat_%d", at%300), int64(at/300)+1, ""))
					}
					if err := kafka.Transact(b.Context(), c, records); err != nil {
						b.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(b.Context())
				defer cancel()
				var left atomic.Int64
				left.Store(int64(b.N))
				e, err := New(Config{
					Addr: r.addr, Group: "bench", Consumer: "b", Topics: []string{kafka.MessagesPersisted}, Store: r.store, Clock: time.Now,
					Logger: slog.New(slog.DiscardHandler), Lanes: lanes,
					Handle: func(_ context.Context, rec *kafka.Record) error {
						if _, err := p.serde.Decode(context.Background(), rec.Key, rec.Value); err != nil {
							return err
						}
						time.Sleep(wait)
						if left.Add(-1) == 0 {
							cancel()
						}
						return nil
					},
					Dead: func(_ context.Context, d Dead) error { return fmt.Errorf("dead letter: %s", d.Reason) },
				})
				if err != nil {
					b.Fatal(err)
				}
				before := cpu(b)
				b.ResetTimer()
				_ = e.Run(ctx)
				b.StopTimer()
				if left.Load() > 0 {
					b.Fatalf("%d records are left", left.Load())
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
				b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/record")
			})
		}
	}
}
