package topicrpc

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// How the benchmarks load a server. .tools/bench-topics runs all of them.
const (
	benchWarm    = time.Second
	benchTime    = 3 * time.Second // that is measured
	benchPayload = 200             // bytes
	benchBatch   = 100             // messages of a publish
	benchAhead   = 10_000          // messages that publishers may be ahead of the slowest group: they are in memory
	benchSamples = 10              // at the memory, while a backlog grows
)

// load is a topic under load, of a server that is a process of its own.
type load struct {
	*child
	*userClients
	published atomic.Int64
	delivered []atomic.Int64 // by group
	stop      context.CancelFunc
	running   sync.WaitGroup
}

// newLoad makes the topic "news" with groups g0 and so on.
func newLoad(b *testing.B, groups int, mode topicv1.CompletionMode) (*load, context.Context) {
	s := startChild(b)
	w := &fixture{TB: b, addr: s.addr}
	l := &load{child: s, userClients: w.as("alice", connect.WithGRPC()), delivered: make([]atomic.Int64, groups)}
	_, err := l.topics.ConfigureTopic(b.Context(), &topicv1.ConfigureTopicRequest{Topic: "news",
		Config: &topicv1.TopicConfig{Semantics: pubSub, CompletionMode: mode}})
	l.must(err)
	for g := range groups {
		l.subscribe("news", fmt.Sprint("g", g), nil)
	}
	ctx, stop := context.WithCancel(b.Context())
	l.stop = stop
	return l, ctx
}

// consume follows a group on a connection of its own and acknowledges each delivery, until ctx ends.
func (l *load) consume(ctx context.Context, group int, handle func(*topicv1.TopicMessage)) {
	c := l.as("alice", connect.WithGRPC())
	stream, err := c.consumers.ConsumeBidi(ctx)
	l.must(err)
	l.must(stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{Attach: &topicv1.Attach{
		Topic: "news", Group: fmt.Sprint("g", group), RenewCredits: true,
		Credits: &topicv1.Credits{Messages: 20_000, Bytes: 8 << 20}}}}))
	_, err = stream.Receive()
	l.must(err)
	l.running.Go(func() {
		for {
			res, err := stream.Receive()
			if err == nil && len(res.GetSettled().GetRefusals()) > 0 {
				err = fmt.Errorf("refused: %v", res.GetSettled().GetRefusals()[0])
			}
			d := res.GetDelivery()
			if err == nil && d != nil {
				for _, m := range d.GetMessages() {
					handle(m)
				}
				err = stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{Ack: &topicv1.AckSet{
					Positions: positions(&topicv1.PullResponse{Deliveries: []*topicv1.Delivery{d}})}}})
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				l.Error(err)
				return
			}
			l.delivered[group].Add(int64(len(d.GetMessages())))
		}
	})
}

// publish publishes batches, one after another, on a connection of its own, as long as the
// groups keep up and more wants it.
func (l *load) publish(ctx context.Context, messages []*topicv1.TopicMessage, more func() bool) {
	c, req := l.as("alice", connect.WithGRPC()), &topicv1.PublishRequest{Topic: "news", Messages: messages}
	l.running.Go(func() {
		for ctx.Err() == nil && more() {
			if l.slowest()+benchAhead < l.published.Load() {
				time.Sleep(200 * time.Microsecond)
				continue
			}
			if _, err := c.topics.Publish(ctx, req); err != nil {
				if ctx.Err() == nil {
					l.Error(err)
				}
				return
			}
			l.published.Add(int64(len(messages)))
		}
	})
}

func (l *load) slowest() int64 {
	least := l.published.Load()
	for i := range l.delivered {
		least = min(least, l.delivered[i].Load())
	}
	return least
}

func (l *load) total() (n int64) {
	for i := range l.delivered {
		n += l.delivered[i].Load()
	}
	return n
}

func payloads(n, size int) []*topicv1.TopicMessage {
	list := make([]*topicv1.TopicMessage, n)
	for i := range list {
		list[i] = &topicv1.TopicMessage{Payload: make([]byte, size)}
	}
	return list
}

// BenchmarkDeliveries has groups with a member each, on streams in both directions of gRPC,
// that acknowledge explicitly what eight publishers publish durably, 100 messages of 200
// bytes a call. Publishers wait for groups that fall behind, so that what is measured can
// run forever. The server's CPU includes what it takes to publish.
func BenchmarkDeliveries(b *testing.B) {
	for _, groups := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprint(groups), func(b *testing.B) {
			l, ctx := newLoad(b, groups, topicv1.CompletionMode_COMPLETION_MODE_UNSPECIFIED)
			for g := range groups {
				l.consume(ctx, g, func(*topicv1.TopicMessage) {})
			}
			for range 8 {
				l.publish(ctx, payloads(benchBatch, benchPayload), func() bool { return true })
			}
			time.Sleep(benchWarm)
			published, delivered, used, own, began := l.published.Load(), l.total(), l.used(), cpu(b), time.Now()
			time.Sleep(benchTime)
			n, took := float64(l.total()-delivered), time.Since(began).Seconds()
			b.ReportMetric(float64(l.published.Load()-published)/took, "published/s")
			b.ReportMetric(n/took, "deliveries/s")
			b.ReportMetric(float64((cpu(b)-own).Nanoseconds())/n, "client-ns/delivery")
			b.ReportMetric(float64((l.used()-used).Nanoseconds())/n, "server-ns/delivery")
			b.ReportMetric(0, "ns/op")
			l.stop()
			l.running.Wait()
		})
	}
}

// BenchmarkLatency publishes 500 messages a second, one a call, to 64 groups: the time from
// before the call to the message's handler.
func BenchmarkLatency(b *testing.B) {
	const groups, publishers, every = 64, 8, 16 * time.Millisecond
	for _, mode := range []topicv1.CompletionMode{topicv1.CompletionMode_COMPLETION_MODE_REFERENCE_COUNTING,
		topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK} {
		b.Run(mode.String()[len("COMPLETION_MODE_"):], func(b *testing.B) {
			l, ctx := newLoad(b, groups, mode)
			base, all := time.Now(), make([][]time.Duration, groups)
			for g := range groups {
				l.consume(ctx, g, func(m *topicv1.TopicMessage) {
					if sent := time.Duration(binary.BigEndian.Uint64(m.GetPayload())); sent > benchWarm {
						all[g] = append(all[g], time.Since(base)-sent)
					}
				})
			}
			answers := make([][]time.Duration, publishers)
			base = time.Now()
			for i := range publishers {
				c, req := l.as("alice", connect.WithGRPC()), payloads(1, benchPayload)
				l.running.Go(func() {
					for due := every / publishers * time.Duration(i); due < benchWarm+benchTime; due += every {
						time.Sleep(time.Until(base.Add(due)))
						binary.BigEndian.PutUint64(req[0].GetPayload(), uint64(due))
						if _, err := c.topics.Publish(ctx, &topicv1.PublishRequest{Topic: "news", Messages: req}); err != nil {
							l.Error(err)
							return
						}
						answers[i] = append(answers[i], time.Since(base)-due)
						l.published.Add(1)
					}
				})
			}
			used := l.used()
			const sent = int64((benchWarm + benchTime) / (every / publishers))
			for (l.total() < sent*groups || l.published.Load() < sent) && !b.Failed() {
				time.Sleep(time.Millisecond)
			}
			b.ReportMetric(float64((l.used()-used).Nanoseconds())/float64(l.total()), "server-ns/delivery")
			l.stop()
			l.running.Wait()
			list, calls := slices.Concat(all...), slices.Concat(answers...)
			slices.Sort(list)
			slices.Sort(calls)
			ms := func(list []time.Duration, percent int) float64 {
				return float64(list[(len(list)-1)*percent/100].Microseconds()) / 1000
			}
			b.ReportMetric(ms(calls, 50), "publish-p50-ms")
			b.ReportMetric(ms(calls, 99), "publish-p99-ms")
			b.ReportMetric(ms(list, 50), "p50-ms")
			b.ReportMetric(ms(list, 99), "p99-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkBacklog publishes 10^6 and 10^7 messages of 20 bytes for four groups without
// members. It checks the server's memory after each tenth: what it grows by from the
// first to the last check is the control state of the messages. Then a group is paused and
// resumed, and reads all.
func BenchmarkBacklog(b *testing.B) {
	for _, size := range []int64{1_000_000, 10_000_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { benchBacklog(b, size) })
	}
}

func benchBacklog(b *testing.B, size int64) {
	l, ctx := newLoad(b, 4, topicv1.CompletionMode_COMPLETION_MODE_UNSPECIFIED)
	var heaps []float64
	left := atomic.Int64{}
	for range benchSamples {
		left.Store(size / benchSamples / 1000)
		for range 8 {
			c, req := l.as("alice", connect.WithGRPC()), &topicv1.PublishRequest{Topic: "news", Messages: payloads(1000, 20)}
			l.running.Go(func() {
				for left.Add(-1) >= 0 {
					if _, err := c.topics.Publish(ctx, req); err != nil {
						l.Error(err)
						return
					}
				}
			})
		}
		l.running.Wait()
		heaps = append(heaps, l.heap())
	}
	first, last := heaps[0], heaps[len(heaps)-1]
	b.ReportMetric(first/(1<<20), "heap-first-MiB")
	b.ReportMetric(slices.Max(heaps)/(1<<20), "heap-most-MiB")
	b.ReportMetric((last-first)/float64(size*(benchSamples-1)/benchSamples), "control-B/message")
	began := time.Now()
	_, err := l.subscriptions.PauseSubscription(ctx, &topicv1.PauseSubscriptionRequest{Topic: "news", Group: "g0"})
	l.must(err)
	b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "pause-call-ms")
	_, err = l.subscriptions.ResumeSubscription(ctx, &topicv1.ResumeSubscriptionRequest{Topic: "news", Group: "g0"})
	l.must(err)
	began = time.Now()
	l.consume(ctx, 0, func(*topicv1.TopicMessage) {})
	for l.total() < size && !b.Failed() {
		time.Sleep(time.Millisecond)
	}
	b.ReportMetric(float64(size)/time.Since(began).Seconds(), "catch-up/s")
	b.ReportMetric(l.heap()/(1<<20), "heap-read-MiB")
	b.ReportMetric(0, "ns/op")
	l.stop()
	l.running.Wait()
}
