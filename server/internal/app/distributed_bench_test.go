//go:build !windows

package app_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/link"
)

// BenchmarkDistributed measures two servers and two workers on real engines. The engines,
// the processes and the clients share one machine, which other work may share, too: so the
// limits of the parts are measured in the same run, in turns with what stands on them, and
// the ratios are the figures to go by. Each rate is the median of some rounds. It is run
// with -benchtime 1x (just bench-distributed).
func BenchmarkDistributed(b *testing.B) {
	if os.Getenv("PARLEY_TEST_DYNAMODB") == "" {
		b.Skip("not run: PARLEY_TEST_DYNAMODB is not set")
	}
	in := newFleet(b, os.Getenv("PARLEY_TEST_DYNAMODB"))
	in.dealt()
	p := newParts(in)
	b.Run("part", func(b *testing.B) { p.bench(b) })
	b.Run("send", func(b *testing.B) { benchSend(b, in, p) })
	b.Run("contended", func(b *testing.B) { benchContended(b, in) })
	for _, n := range []int{1, 99} { // and the sender: a group has a hundred members
		b.Run(fmt.Sprint("deliver/recipients=", n), func(b *testing.B) { benchDeliver(b, in, n) })
		b.Run(fmt.Sprint("repair/recipients=", n), func(b *testing.B) { benchRepair(b, in, n) })
	}
	b.Run("kafka", func(b *testing.B) { benchKafka(b, in, p) })
}

const rounds = 3

// driven is what a number of callers did in some time.
type driven struct {
	took []time.Duration
	rate float64 // a second
}

// drive has callers call f one after another for a while.
func drive(b *testing.B, callers int, d time.Duration, f func(caller int) error) driven {
	b.Helper()
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	start := time.Now()
	for c := range callers {
		wg.Go(func() {
			var mine []time.Duration
			for time.Since(start) < d {
				began := time.Now()
				if err := f(c); err != nil {
					b.Error(err)
					break
				}
				mine = append(mine, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	wg.Wait()
	return driven{all, float64(len(all)) / time.Since(start).Seconds()}
}

func median[T float64 | time.Duration](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

func rates(list []driven) (out []float64) {
	for _, l := range list {
		out = append(out, l.rate)
	}
	return out
}

func times(list []driven) (out []time.Duration) {
	for _, l := range list {
		out = append(out, l.took...)
	}
	return out
}

// report reports the rate and the latencies of rounds.
func report(b *testing.B, unit string, list []driven) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(rates(list)), unit+"/s")
	reportLatency(b, times(list), "")
}

// benchContended: sends in one chat, through one server and, in turns, through both.
func benchContended(b *testing.B, in *fleet) {
	users := []*user{in.person("dan", 0), in.person("eve", 0), in.person("fay", 1)}
	text := strings.Repeat("x", 128)
	for _, senders := range []int{2, 8, 64} {
		b.Run(fmt.Sprint("senders=", senders), func(b *testing.B) {
			through := func(other *user) func() driven {
				at := []*user{users[0], other}
				id := in.bench.group(users[0], other.name) // of its own: servers remember who writes where
				return func() driven {
					return drive(b, senders, 2*time.Second, func(c int) error { return in.send(at[c%2], id, text) })
				}
			}
			here, elsewhere := through(users[1]), through(users[2])
			elsewhere() // until they know of each other
			forwarded := in.sum(telemetry.LinkForwarded, in.servers[:]...)
			var one, both []driven
			for range rounds {
				in.quiet()
				one, both = append(one, here()), append(both, elsewhere())
			}
			forwarded = in.sum(telemetry.LinkForwarded, in.servers[:]...) - forwarded
			b.ReportMetric(forwarded/float64(len(times(both))), "forwarded/send")
			report(b, "sends", both)
			reportLatency(b, times(one), "one-server-")
			b.ReportMetric(median(rates(one)), "one-server-sends/s")
		})
	}
}

// benchSend: sends through both servers, beside transactions of the same shape by as many
// callers, straight at DynamoDB.
func benchSend(b *testing.B, in *fleet, p *parts) {
	users := []*user{in.person("ann", 0), in.person("ben", 1)}
	chats := make([]string, 64)
	each(len(chats), 8, func(i int) { chats[i] = in.bench.group(users[i%2], users[1-i%2].name) })
	text := strings.Repeat("x", 128)
	for _, senders := range []int{1, 8, 64} {
		for _, over := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("senders=%d/chats=%d", senders, over), func(b *testing.B) {
				in.quiet()
				plans, failed := in.sum(telemetry.StorePlans, in.servers[:]...), in.sum(telemetry.StoreFailed, in.servers[:]...)
				var sends, alone []driven
				n := make([]int, senders)
				for range rounds {
					sends = append(sends, drive(b, senders, 700*time.Millisecond, func(c int) error {
						n[c]++
						return in.send(users[c%2], chats[(c+n[c]*senders)%over], text)
					}))
					alone = append(alone, drive(b, senders, 300*time.Millisecond, p.transact))
				}
				report(b, "sends", sends)
				done := float64(len(times(sends)))
				b.ReportMetric((in.sum(telemetry.StorePlans, in.servers[:]...)-plans)/done, "plans/send")
				b.ReportMetric((in.sum(telemetry.StoreFailed, in.servers[:]...)-failed)/done, "refused/send")
				b.ReportMetric(median(rates(alone)), "transactions/s")
				b.ReportMetric(median(rates(sends))/median(rates(alone)), "sends/transaction")
				b.ReportMetric(float64(median(times(sends)))/float64(median(times(alone))), "p50/transaction")
			})
		}
	}
	in.quiet()
}

// sendInterval is the time between messages that are measured one by one.
const sendInterval = 25 * time.Millisecond

// benchDeliver: one message at a time, from before the send to the frame at each of the
// recipients; one at the other server, or some at both.
func benchDeliver(b *testing.B, in *fleet, recipients int) {
	alice := in.person("alice", 1)
	people := in.people(fmt.Sprintf("d%d_", recipients), recipients)
	id := in.bench.group(alice, names(people)...)
	c := in.bench.crowd("", people)
	in.quiet()
	const n = 60
	acks := driven{took: make([]time.Duration, 0, n)}
	for i := range n {
		start := time.Now()
		if err := in.send(alice, id, stamped("hello")); err != nil {
			b.Fatal(err)
		}
		acks.took = append(acks.took, time.Since(start))
		c.await(int64((i + 1) * recipients))
		time.Sleep(sendInterval) // one message at a time: what is measured is a way, not a queue
	}
	c.stop()
	c.wg.Wait()
	b.ReportMetric(0, "ns/op")
	reportLatency(b, acks.took, "ack-")
	reportLatency(b, c.times, "")
	b.ReportMetric(float64(median(c.times))/float64(median(acks.took)), "p50/ack")
	in.quiet()
}

// benchRepair: the same without a live path: the sender stands for a server without links, so
// that its commits reach the servers through the outbox, the relay, Kafka and fanout alone.
func benchRepair(b *testing.B, in *fleet, recipients int) {
	alice := in.person("alice", 1)
	people := in.people(fmt.Sprintf("r%d_", recipients), recipients)
	id := in.bench.group(alice, names(people)...)
	c := in.bench.crowd("", people)
	nudger := link.NewNudger(in.routing, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(in.bench.ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = nudger.Run(ctx, func() {}) })
	svc, err := chat.New(ctx, chat.Config{
		Store: in.store, Clock: time.Now, Generation: in.store.Generation(), Producer: "bench", Committed: nudger.Nudge,
	})
	if err != nil {
		b.Fatal(err)
	}
	in.quiet()
	const n = 30
	for i := range n {
		if _, err := svc.Send(ctx, chat.Send{Caller: "alice", ChatID: id, Content: stamped("hello"),
			ClientMessageID: fmt.Sprint(i)}); err != nil {
			b.Fatal(err)
		}
		c.await(int64((i + 1) * recipients))
		time.Sleep(sendInterval) // one message at a time: what is measured is a way, not a queue
	}
	c.stop()
	c.wg.Wait()
	stop()
	wg.Wait()
	b.ReportMetric(0, "ns/op")
	reportLatency(b, c.times, "")
	in.quiet()
}

// benchKafka: from before the send to a reader of committed records, beside transactions of
// one record, straight at Kafka.
func benchKafka(b *testing.B, in *fleet, p *parts) {
	alice := in.person("alice", 1)
	in.person("bob", 0)
	id := in.bench.group(alice, "bob")
	in.quiet()
	reader, err := kafka.NewReader(in.kafka, kafka.MessagesPersisted)
	if err != nil {
		b.Fatal(err)
	}
	defer reader.Close()
	came := make(chan time.Duration, 1024)
	ctx, stop := context.WithCancel(in.bench.ctx)
	defer stop()
	go func() {
		for ctx.Err() == nil {
			reader.PollFetches(ctx).EachRecord(func(r *kafka.Record) {
				now := time.Now()
				var m eventv1.MessagePersisted
				// A zero byte, four of the schema's id, one of the message's index.
				if string(r.Key) != id || len(r.Value) < 6 || proto.Unmarshal(r.Value[6:], &m) != nil {
					return
				}
				came <- now.Sub(sentAt(b, m.GetContent()))
			})
		}
	}()
	const n = 60
	var took, alone []time.Duration
	for range n {
		if err := in.send(alice, id, stamped("hello")); err != nil {
			b.Fatal(err)
		}
		select {
		case d := <-came:
			took = append(took, d)
		case <-ctx.Done():
			b.Fatal("the message does not come")
		}
		start := time.Now()
		if err := p.publish(0, 1); err != nil {
			b.Fatal(err)
		}
		alone = append(alone, time.Since(start))
	}
	b.ReportMetric(0, "ns/op")
	reportLatency(b, took, "")
	reportLatency(b, alone, "transaction-")
	b.ReportMetric(float64(median(took))/float64(median(alone)), "p50/transaction")
}
