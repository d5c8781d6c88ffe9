package chat_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store/embedded"
)

// BenchmarkSend measures durable sends per second at domain level, by number of
// concurrent writers, over many chats and over one. Target on 2 cores: 20,000/s
// at 128 writers.
func BenchmarkSend(b *testing.B) {
	for _, writers := range []int{1, 16, 128} {
		for _, chats := range []int{1000, 1} {
			b.Run(fmt.Sprintf("writers=%d/chats=%d", writers, chats), func(b *testing.B) { benchSend(b, writers, chats) })
		}
	}
}

func benchSend(b *testing.B, writers, chats int) {
	ctx := context.Background()
	st, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	svc, err := chat.New(ctx, chat.Config{Store: st, Clock: time.Now, Generation: st.Generation(), Producer: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	ids := make([]string, chats)
	for _, u := range []string{"alice", "bob"} {
		if err := svc.EnsureUser(ctx, u); err != nil {
			b.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < chats; i += 16 {
				c, err := svc.CreateGroup(ctx, chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
				if err != nil {
					b.Error(err)
					return
				}
				ids[i] = c.ChatID
			}
		})
	}
	wg.Wait()
	text := strings.Repeat("x", 128)
	times := make([]time.Duration, b.N)
	var next atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	for range writers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= b.N {
					return
				}
				start := time.Now()
				if _, err := svc.Send(ctx, chat.Send{Caller: "alice", ChatID: ids[i%chats], Content: text}); err != nil {
					b.Error(err)
					return
				}
				times[i] = time.Since(start)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	slices.Sort(times)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sends/s")
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
}
