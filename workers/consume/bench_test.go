package consume

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	testkit.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A backlog of 100,000 events of 2,000 chats over 64 partitions, decoded and checked, record by
// record and a chat's at once, by a handler whose calls wait 0, 1 or 5 ms. Slow handlers stop
// after the first part of the backlog.
func BenchmarkBacklog(b *testing.B) {
	b.Run("process", func(b *testing.B) { benchmarkBacklog(b, kafkatest.InProcess(b)) })
	b.Run("apache", func(b *testing.B) { benchmarkBacklog(b, kafkatest.Apache(b)) })
}

func benchmarkBacklog(b *testing.B, broker *kafkatest.Broker) {
	const backlog, chats = 100_000, 2_000
	r := newFixture(b, broker)
	p := newPoisoner(b, r)
	start := r.ends()
	c, err := kafka.NewTransactional(r.addr, broker.Name("bench"))
	testkit.Must(b, err)
	defer c.Close()
	for at := 0; at < backlog; {
		var records []*kafka.Record
		for ; at < backlog && len(records) < 500; at++ {
			records = append(records, p.record(fmt.Sprintf("chat_%d", at*7919%chats), int64(at/chats)+1, ""))
		}
		testkit.Must(b, kafka.Transact(b.Context(), c, records))
	}
	limits := map[time.Duration]int64{0: backlog, time.Millisecond: 40_000, 5 * time.Millisecond: 20_000}
	for _, wait := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
		for _, batch := range []bool{false, true} {
			for _, parallel := range []int{16, 64} {
				b.Run(fmt.Sprintf("wait=%s/batch=%t/parallel=%d", wait, batch, parallel), func(b *testing.B) {
					var calls int64
					before := cpu(b)
					for n := 0; b.Loop(); n++ {
						group := broker.Name(fmt.Sprintf("%d-%t-%d-%d-%d", wait, batch, parallel, b.N, n))
						r.commit(group, start)
						ctx, cancel := context.WithCancel(b.Context())
						var left atomic.Int64
						left.Store(limits[wait])
						cfg := Config{
							Addr: r.addr, Group: group, Consumer: "b", Topics: []string{kafka.MessagesPersisted}, Store: r.store,
							Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Parallel: parallel,
							WriteDeadLetter: func(_ context.Context, d DeadLetter) error { return fmt.Errorf("dead letter: %s", d.Reason) },
						}
						handle := func(_ context.Context, records []*kafka.Record) (int, error) {
							for i, rec := range records {
								if _, err := p.serde.Decode(context.Background(), rec.Key, rec.Value); err != nil {
									return i, err
								}
							}
							if wait > 0 {
								time.Sleep(wait) // a handler's call of another service
							}
							if left.Add(-int64(len(records))) <= 0 {
								cancel()
							}
							return len(records), nil
						}
						if batch {
							cfg.Batch = handle
						} else {
							cfg.Handle = BatchHandler(handle).One()
						}
						e, err := New(cfg)
						testkit.Must(b, err)
						_ = e.Run(ctx, func() {})
						cancel()
						if left.Load() > 0 {
							b.Fatalf("%d records remain", left.Load())
						}
						calls += e.Stats().Calls
					}
					all := float64(limits[wait]) * float64(b.N)
					b.ReportMetric(all/b.Elapsed().Seconds(), "records/s")
					b.ReportMetric(float64(calls)/all, "calls/record")
					b.ReportMetric(float64((cpu(b)-before).Microseconds())/all, "cpu-µs/record")
				})
			}
		}
	}
}
