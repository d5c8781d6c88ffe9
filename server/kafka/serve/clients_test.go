package serve_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/serve"
)

// Clients as old as Kafka 1.0 read as the newest one does. The oldest shows its password without headers.
func TestOldClients(t *testing.T) {
	b := start(t, nil)
	b.log.append(first, odd()...)
	for name, v := range map[string]*kversion.Versions{"0.11": kversion.V0_11_0(), "1.0": kversion.V1_0_0(),
		"2.3": kversion.V2_3_0(), "2.8": kversion.V2_8_0(), "3.7": kversion.V3_7_0(), "newest": kversion.Stable()} {
		c := b.client(t, kgo.MaxVersions(v), kgo.ConsumeTopics(events),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		f := c.PollFetches(limited(t))
		testkit.Must(t, f.Err())
		testkit.Equal(t, name, f.NumRecords(), 4)
		c.Close()
	}
}

// Clients that read while the log grows, with gaps, get each record once and in order.
func TestReadersOfAGrowingLog(t *testing.T) {
	const readers, records = 6, 3000
	b := start(t, func(c *serve.Config) { c.AnswerMemory = 8 << 20 }) // one answer under way at a time
	var all sync.WaitGroup
	for range readers {
		c := b.client(t, kgo.ConsumeTopics(events), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.FetchMaxWait(100*time.Millisecond), kgo.FetchMaxPartitionBytes(10_000))
		all.Go(func() {
			next := map[int32]int{}
			ctx := limited(t)
			for n := 0; n < records; {
				f := c.PollFetches(ctx)
				if err := f.Err(); err != nil {
					t.Errorf("after %d records: %v", n, err)
					return
				}
				f.EachRecord(func(r *kgo.Record) {
					if want := fmt.Sprint(next[r.Partition]); string(r.Value[:len(want)]) != want || r.Value[len(want)] != ' ' {
						t.Errorf("partition %d: %.10q, expected %s", r.Partition, r.Value, want)
					}
					next[r.Partition]++
					n++
				})
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 1))
	var counts [4]int
	for range records {
		p := kafka.Partition{Topic: events, ID: rng.Int32N(4)}
		b.log.append(p, &kgo.Record{Value: append(fmt.Append(nil, counts[p.ID], " "), make([]byte, rng.IntN(500))...),
			Timestamp: time.UnixMilli(1)})
		counts[p.ID]++
		if rng.IntN(10) == 0 {
			b.log.skip(p, 1+rng.Int64N(3))
		}
	}
	all.Wait()
}

// The end of the server's context ends all its connections, whatever they wait for.
func TestShutdown(t *testing.T) {
	l := newMemoryLog(topics()...)
	s := testkit.Value(serve.New(serve.Config{Log: l, Groups: new(groupsDouble)}))(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	ends := make(chan error, 3)
	for i := range 3 {
		ours, theirs := pipe(t)
		go func() { ends <- s.Serve(ctx, theirs, "anyone") }()
		if i > 0 {
			req := fetchOf(12, at(first, 0))
			req.MaxWaitMillis = 1<<31 - 1
			testkit.Must(t, (&raw{Conn: ours}).ask(req))
		}
	}
	testkit.Eventually(t, "two fetches wait", func() bool { return l.waits() == 2 })
	cause := errors.New("the server ends")
	cancel(cause)
	for range 3 {
		if err := <-ends; !errors.Is(err, cause) {
			t.Errorf("a connection ended with %v", err)
		}
	}
}
