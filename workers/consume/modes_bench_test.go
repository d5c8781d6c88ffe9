package consume

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store/storetest"
)

// A backlog of 50,000 records of 500 aggregates over 16 partitions becomes a ledger in a store in
// memory: by a handler of batches that commits by itself, and in the mode of aggregates, without
// parked keys and with one in ten parked.
func BenchmarkModes(b *testing.B) {
	broker := kafkatest.InProcess(b)
	r := newFixture(b, broker)
	const keys, each = 500, 100
	var list []*kafka.Record
	for n := range int64(each) {
		for k := range keys {
			key := fmt.Sprint("k", k)
			list = append(list, &kafka.Record{Topic: topic, Partition: int32(k % 16), Key: []byte(key),
				Value: fmt.Appendf(nil, "%s ok %d", key, n+1)})
		}
	}
	r.publishRecords(list)
	for _, mode := range []string{"batch", "aggregate", "parked"} {
		b.Run(mode, func(b *testing.B) {
			before, groups := cpu(b), 0
			for b.Loop() {
				groups++
				l, s := newLedger(b, storetest.NewMemory(time.Now)), &shelf{}
				if mode == "parked" {
					l.fail = func(_ context.Context, key string, n int64) error {
						if n == 2 && key[len(key)-1] == '0' {
							return Fail(Permanent, "as planned", nil)
						}
						return nil
					}
				}
				e := r.engine(func(c *Config) {
					c.Group, c.Store, c.Handle, c.WriteDeadLetter = fmt.Sprint(mode, b.N, groups), l.store, nil, s.write
					c.Parallel = 16
					if mode == "batch" {
						c.Batch = AggregateHandler(l.handle).Batch(l.store)
					} else {
						c.Aggregate = l.handle
					}
				})
				stop := r.run(e)
				testkit.Eventually(b, "all records", func() bool {
					st := e.Stats()
					return st.Handled+st.DeadLettered >= keys*each
				})
				stop()
			}
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(keys*each*b.N), "cpu-µs/record")
		})
	}
}
