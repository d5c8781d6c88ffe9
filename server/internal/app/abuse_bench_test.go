package app_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// BenchmarkAbuse measures people who keep to the limits of rates, alone and beside a hundred
// who send ten times as much as they may and do not wait where an answer tells them to. The
// aim: a p99 of at most twice the one alone.
func BenchmarkAbuse(b *testing.B) {
	const people, abusers = 25, 100
	for _, beside := range []int{0, abusers} {
		b.Run(fmt.Sprint(beside, "_abusers"), func(b *testing.B) {
			b.Setenv("PARLEY_LIMITS", "new_send=off")
			y := newBenchFixture(b)
			ctx, cancel := context.WithCancel(y.ctx)
			defer cancel()
			chat := func(name string) (*user, string) {
				u := y.user(name, true)
				y.user(name+"2", true)
				return u, y.group(u, name+"2")
			}
			var wg sync.WaitGroup
			for i := range beside {
				u, id := chat(fmt.Sprint("abuser", i))
				for err := error(nil); err == nil; { // the burst is theirs to have
					_, err = u.messages.SendMessage(ctx, &messagev1.SendMessageRequest{ChatId: id, Content: "x"})
				}
				wg.Go(func() {
					for tick := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-tick.C {
						_, _ = u.messages.SendMessage(ctx, &messagev1.SendMessageRequest{ChatId: id, Content: "x"})
					}
				})
			}
			users, chats := make([]*user, people), make([]string, people)
			for i := range people {
				users[i], chats[i] = chat(fmt.Sprint("person", i))
			}
			times := make([]time.Duration, b.N)
			tick := time.NewTicker(1100 * time.Millisecond / people) // for each a little less than one a second
			defer tick.Stop()
			b.ResetTimer()
			for i := range times {
				<-tick.C
				began := time.Now()
				y.send(users[i%people], chats[i%people], "x")
				times[i] = time.Since(began)
			}
			b.StopTimer()
			cancel()
			wg.Wait()
			reportLatency(b, times, "")
		})
	}
}
