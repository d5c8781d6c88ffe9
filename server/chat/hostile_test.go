package chat_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store/table"
)

// hostile are loads beside a paced member: what each of their workers does again and
// again, in the member's own chat or elsewhere. cat was removed from the chat, eve never
// was in it, the users n0 to n7 are members.
var hostile = []struct {
	name    string
	workers int
	do      func(ctx context.Context, s *chat.Service, id string, worker, n int)
}{
	{"none", 0, nil},
	{"a removed member adds", 100, func(ctx context.Context, s *chat.Service, id string, worker, _ int) {
		_, _ = s.Change(ctx, chat.OpAdd, chat.MemberChange{Caller: "cat", ChatID: id, UserID: "eve", Role: table.Member})
	}},
	{"strangers send", 100, func(ctx context.Context, s *chat.Service, id string, worker, _ int) {
		_, _ = s.Send(ctx, chat.Send{Caller: fmt.Sprint("eve", worker%10), ChatID: id, Content: "x"})
	}},
	{"unknown chats", 100, func(ctx context.Context, s *chat.Service, _ string, worker, n int) {
		_, _ = s.Send(ctx, chat.Send{Caller: "eve", ChatID: chat.NewID("chat_"), Content: "x"})
	}},
	{"members without the role add", 100, func(ctx context.Context, s *chat.Service, id string, worker, _ int) {
		_, _ = s.Change(ctx, chat.OpAdd,
			chat.MemberChange{Caller: fmt.Sprint("n", worker%8), ChatID: id, UserID: "eve", Role: table.Member})
	}},
	{"a member repeats", 64, func(ctx context.Context, s *chat.Service, id string, _, _ int) {
		_, _ = s.Send(ctx, chat.Send{Caller: "n0", ChatID: id, Content: "x", ClientMessageID: "old"})
	}},
	{"8 noisy members", 64, func(ctx context.Context, s *chat.Service, id string, worker, _ int) {
		_, _ = s.Send(ctx, chat.Send{Caller: fmt.Sprint("n", worker%8), ChatID: id, Content: "noise"})
	}},
}

// BenchmarkHostile measures a member who sends every 5 ms, alone and beside hostile load
// on the same process. The aim: a p99 of at most three times the one alone.
func BenchmarkHostile(b *testing.B) {
	for _, load := range hostile {
		b.Run(load.name, func(b *testing.B) {
			users := []string{"ann", "bob", "cat", "eve"}
			noisy := numbered("n", 8)
			for i := range noisy {
				noisy[i] = fmt.Sprint("n", i)
			}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			s := benchService(b, append(users, noisy...))
			c, err := s.CreateGroup(ctx, chat.CreateGroup{Caller: "ann", Name: "g", Members: append(noisy, "bob", "cat")})
			if err != nil {
				b.Fatal(err)
			}
			if err := changeMember(ctx, s, chat.OpRemove,
				chat.MemberChange{Caller: "ann", ChatID: c.ChatID, UserID: "cat"}); err != nil {
				b.Fatal(err)
			}
			var wg sync.WaitGroup
			for i := range load.workers {
				wg.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						load.do(ctx, s, c.ChatID, i, n)
					}
				})
			}
			times := make([]time.Duration, 0, b.N)
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			b.ResetTimer()
			for range b.N {
				<-tick.C
				began := time.Now()
				if _, err := s.Send(ctx, chat.Send{Caller: "bob", ChatID: c.ChatID, Content: "x"}); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(began))
			}
			b.StopTimer()
			cancel()
			wg.Wait()
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}
