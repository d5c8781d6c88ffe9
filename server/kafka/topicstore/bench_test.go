package topicstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

// BenchmarkAppend appends messages of 200 bytes, each of a publisher's own, by so many
// publishers at once, with and without numbers. An operation is an append that is durable.
func BenchmarkAppend(b *testing.B) {
	for _, kind := range []string{"memory", "apache"} {
		for _, publishers := range []int{1, 64, 512} {
			for _, numbered := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/publishers=%d/numbered=%v", kind, publishers, numbered), func(b *testing.B) {
					broker := func() *kafkatest.Broker {
						if kind == "apache" {
							return apache(b)
						}
						m, _ := kafkatest.Fake(b)
						return m
					}()
					benchmarkAppend(b, broker, publishers, numbered)
				})
			}
		}
	}
}

func benchmarkAppend(b *testing.B, broker *kafkatest.Broker, publishers int, numbered bool) {
	l := open(b, broker, 9, time.Now)
	number := uint64(time.Now().UnixNano())
	t := commitlog.Topic{Number: number, Name: fmt.Sprint("bench-", number), Partitions: 4}
	if err := l.Create(b.Context(), t); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	var all sync.WaitGroup
	for p := range publishers {
		all.Go(func() {
			for n := p; n < b.N; n += publishers {
				a := commitlog.Append{Partition: commitlog.Partition{Topic: t.Number, Number: int32(n % 4)},
					Messages: []*commitlog.Message{{Key: "key", Payload: make([]byte, 200)}}}
				if numbered {
					a.Producer = commitlog.Producer{ID: fmt.Sprint("p", p), Number: int64(n)}
				}
				if _, err := l.Append(b.Context(), []commitlog.Append{a}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
	b.StopTimer()
	if err := l.Delete(b.Context(), t.Number); err != nil {
		b.Fatal(err)
	}
}
