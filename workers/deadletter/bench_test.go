package deadletter

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/workers/consume"
)

// A call on a topic of 5,000 dead letters, all of which it reads.
func BenchmarkCount(b *testing.B) {
	broker := kafkatest.InProcess(b)
	c, err := kafka.NewProducer(broker.Addr)
	testkit.Must(b, err)
	b.Cleanup(c.Close)
	write := consume.Publisher(c, func(b []byte) ([]byte, error) { return append([]byte{0, 0, 0, 0, 9, 0}, b...), nil })
	const deadLetters, writers = 5_000, 50
	done := make(chan error, writers)
	for w := range writers {
		go func() {
			var err error
			for n := w; n < deadLetters && err == nil; n += writers {
				rec := &kafka.Record{Topic: kafka.MessagesPersisted, Partition: int32(n % 64), Offset: int64(n),
					Key: fmt.Append(nil, "chat", n%100), Value: make([]byte, 400)}
				err = write(context.Background(),
					consume.DeadLetter{Record: rec, Group: "fanout", Consumer: "c", Reason: "permanent: bad", FailedAt: time.Now(),
						Attempts: 1})
			}
			done <- err
		}()
	}
	for range writers {
		testkit.Must(b, <-done)
	}
	m, err := New(Config{Addr: broker.Addr, Store: storetest.NewMemory(time.Now), Clock: time.Now,
		Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(b, err)
	for b.Loop() {
		if _, all, err := m.Count(b.Context(), Filter{}); err != nil || all != deadLetters {
			b.Fatal(all, err)
		}
	}
	b.ReportMetric(float64(deadLetters)*float64(b.N)/b.Elapsed().Seconds(), "letters/s")
}
