package chat_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
)

func benchService(b *testing.B, users []string) *chat.Service {
	st, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := st.Close(); err != nil {
			b.Error(err)
		}
	})
	svc, err := chat.New(context.Background(), chat.Config{Store: st, Clock: time.Now, Generation: st.Generation(), Producer: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < len(users); i += 16 {
				if err := svc.EnsureUser(context.Background(), users[i]); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return svc
}

// BenchmarkMembership measures durable changes of memberships per second: each
// client adds a user of its own and removes it again, over many chats and in one.
func BenchmarkMembership(b *testing.B) {
	for _, clients := range []int{1, 16, 64} {
		for _, chats := range []int{64, 1} {
			b.Run(fmt.Sprintf("clients=%d/chats=%d", clients, chats), func(b *testing.B) {
				users := numbered("u", clients)
				svc := benchService(b, append(users, "owner", "bob"))
				ids := make([]string, chats)
				for i := range ids {
					c, err := svc.CreateGroup(b.Context(), chat.CreateGroup{Caller: "owner", Name: "g", Members: []string{"bob"}})
					if err != nil {
						b.Fatal(err)
					}
					ids[i] = c.ChatID
				}
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				b.ReportAllocs()
				b.ResetTimer()
				for i, user := range users {
					wg.Go(func() {
						c := chat.MemberChange{Caller: "owner", ChatID: ids[i%chats], UserID: user, Role: table.Member}
						for n := 0; left.Add(-1) >= 0; n++ {
							op := chat.OpAdd
							if n%2 == 1 {
								op = chat.OpRemove
							}
							if _, err := svc.Change(b.Context(), op, c); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "changes/s")
			})
		}
	}
}

// BenchmarkCreateGroup measures the creation of complete groups of 100: the group,
// and four chunks of members.
func BenchmarkCreateGroup(b *testing.B) {
	for _, clients := range []int{1, 8} {
		b.Run(fmt.Sprintf("members=100/clients=%d", clients), func(b *testing.B) {
			users := numbered("u", 99)
			svc := benchService(b, append(users, "owner"))
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range clients {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						c, err := svc.CreateGroup(b.Context(), chat.CreateGroup{Caller: "owner", Name: "g", Members: users})
						if err != nil || c.Incomplete != nil {
							b.Error(err, c.Incomplete)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "groups/s")
		})
	}
}
