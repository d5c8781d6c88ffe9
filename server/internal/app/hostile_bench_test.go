package app_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/chat"
)

// hostileFixture is the chat in which a member writes, and who else is about: cat was removed from
// it, the strangers never were in it, the noisy are members, and lots has 1,000 chats.
type hostileFixture struct {
	*benchFixture
	id        string
	cat, lots *user
	strangers []*user
	noisy     []*user
}

// rpcLoads are loads beside a paced member: what each of their workers asks for again and
// again. They do not wait where an answer tells them to.
var rpcLoads = []struct {
	name    string
	workers int
	ask     func(ctx context.Context, y *hostileFixture, worker int)
}{
	{"none", 0, nil},
	{"a removed member adds", 100, func(ctx context.Context, y *hostileFixture, _ int) {
		_, _ = y.cat.chats.AddMember(ctx, &chatv1.AddMemberRequest{ChatId: y.id, UserId: "eve0"})
	}},
	{"strangers send", 100, func(ctx context.Context, y *hostileFixture, worker int) {
		_, _ = y.strangers[worker%len(y.strangers)].messages.SendMessage(ctx,
			&messagev1.SendMessageRequest{ChatId: y.id, Content: "x"})
	}},
	{"unknown chats", 100, func(ctx context.Context, y *hostileFixture, worker int) {
		_, _ = y.strangers[worker%len(y.strangers)].messages.SendMessage(ctx,
			&messagev1.SendMessageRequest{ChatId: chat.NewID("chat_"), Content: "x"})
	}},
	{"8 noisy members", 8, func(ctx context.Context, y *hostileFixture, worker int) {
		_, _ = y.noisy[worker%len(y.noisy)].messages.SendMessage(ctx,
			&messagev1.SendMessageRequest{ChatId: y.id, Content: strings.Repeat("x", 128)})
	}},
	{"large pages", 8, func(ctx context.Context, y *hostileFixture, worker int) {
		_, _ = y.noisy[worker%len(y.noisy)].messages.ListMessages(ctx,
			&messagev1.ListMessagesRequest{ChatId: y.id, PageSize: 100})
	}},
	{"16 lists", 16, func(ctx context.Context, y *hostileFixture, _ int) {
		_, _ = y.lots.chats.ListChats(ctx, &chatv1.ListChatsRequest{PageSize: 100})
	}},
}

func newHostileFixture(b *testing.B) *hostileFixture {
	y := &hostileFixture{benchFixture: newBenchFixture(b)}
	ann := y.user("ann", false)
	y.cat, y.lots = y.user("cat", false), y.user("lots", false)
	members := []string{"bob", "cat"}
	for i := range 10 {
		y.strangers = append(y.strangers, y.user(fmt.Sprint("eve", i), false))
	}
	for i := range 8 {
		y.noisy = append(y.noisy, y.user(fmt.Sprint("noisy", i), false))
		members = append(members, fmt.Sprint("noisy", i))
	}
	y.user("bob", false)
	y.id = y.group(ann, members...)
	each(1000, 16, func(int) { y.group(y.lots, "ann") })
	each(200, 16, func(int) { y.send(ann, y.id, strings.Repeat("x", 4000)) })
	if _, err := ann.chats.RemoveMember(y.ctx, &chatv1.RemoveMemberRequest{ChatId: y.id, UserId: "cat"}); err != nil {
		b.Fatal(err)
	}
	return y
}

// BenchmarkHostileRPC measures a member who sends every 10 ms to the real program, alone
// and beside hostile load; the clients of both share the machine with it. The aim: a p99
// of at most three times the one alone.
func BenchmarkHostileRPC(b *testing.B) {
	for _, load := range rpcLoads {
		b.Run(load.name, func(b *testing.B) {
			y := newHostileFixture(b)
			bob := y.user("bob", false)
			ctx, cancel := context.WithCancel(y.ctx)
			defer cancel()
			var wg sync.WaitGroup
			for i := range load.workers {
				wg.Go(func() {
					for ctx.Err() == nil {
						load.ask(ctx, y, i)
					}
				})
			}
			times := make([]time.Duration, b.N)
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			b.ResetTimer()
			for i := range times {
				<-tick.C
				began := time.Now()
				y.send(bob, y.id, "x")
				times[i] = time.Since(began)
			}
			b.StopTimer()
			cancel()
			wg.Wait()
			reportLatency(b, times, "")
		})
	}
}
