package view_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// bench is a reader over the embedded engine.
func bench(b *testing.B) (*view.Reader, store.Store, time.Time) {
	s, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	r := view.New(view.Config{Store: s, History: store.Line(generation),
		TokenKey: make([]byte, view.KeySize), Clock: time.Now})
	return r, s, time.Now()
}

// pagesOf takes all pages of a Sync and returns the number of chats.
func pagesOf(b *testing.B, r *view.Reader, user, token string) (chats int) {
	for page := ""; ; {
		res, err := r.Sync(b.Context(), user, &deliveryv1.SyncRequest{Token: token, PageToken: page, PageSize: 1000})
		if err != nil {
			b.Fatal(err)
		}
		chats += len(res.GetOverviews())
		if page = res.GetNextPageToken(); page == "" {
			return chats
		}
	}
}

// BenchmarkSync measures Sync and ListChats on the embedded engine: what a client does
// that was away, with nothing or one page of changes, the first page of everything,
// and everything in all its pages.
func BenchmarkSync(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("chats=%d", n), func(b *testing.B) {
			r, s, now := bench(b)
			writeChats(b, s, "bob", n, now.Add(-time.Hour))
			run := func(name string, want int, f func() int) {
				b.Run(name, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if got := f(); got != want {
							b.Fatalf("%d chats", got)
						}
					}
				})
			}
			run("nothing", 0, func() int { return pagesOf(b, r, "bob", r.NewToken("bob", from(now))) })
			run("changed", 10, func() int {
				return pagesOf(b, r, "bob",
					r.NewToken("bob", from(now.Add(-time.Hour-58*time.Minute))))
			})
			run("first page", min(n, 100), func() int {
				res, err := r.Sync(b.Context(), "bob", &deliveryv1.SyncRequest{})
				if err != nil {
					b.Fatal(err)
				}
				return len(res.GetOverviews())
			})
			run("all pages", n, func() int { return pagesOf(b, r, "bob", "") })
			run("ListChats, all pages", n, func() (chats int) {
				for page := ""; ; {
					res, err := r.ListChats(b.Context(), "bob", &chatv1.ListChatsRequest{PageToken: page, PageSize: 100})
					if err != nil {
						b.Fatal(err)
					}
					chats += len(res.GetOverviews())
					if page = res.GetNextPageToken(); page == "" {
						return chats
					}
				}
			})
		})
	}
}

// BenchmarkListsBesideAPacedUser measures how long another user waits for one chat, every
// 2 ms, alone and while 16 callers list 10,000 chats without a pause: those of one user,
// or each its own.
func BenchmarkListsBesideAPacedUser(b *testing.B) {
	const callers, chats = 16, 10_000
	r, s, now := bench(b)
	for i := range callers {
		writeChats(b, s, fmt.Sprint("user", i), chats, now) // the same chats
	}
	writeChats(b, s, "ann", 10, now)
	one := fmt.Sprintf("chat_%026d", 0)
	for name, user := range map[string]func(i int) string{
		"alone":          nil,
		"16 of one user": func(int) string { return "user0" },
		"16 users":       func(i int) string { return fmt.Sprint("user", i) },
	} {
		b.Run(name, func(b *testing.B) {
			stop := make(chan struct{})
			var wg sync.WaitGroup
			var lists atomic.Int64
			for i := 0; user != nil && i < callers; i++ {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							pagesOf(b, r, user(i), "")
							lists.Add(1)
						}
					}
				})
			}
			took := make([]time.Duration, 0, b.N)
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			begin := time.Now()
			for b.Loop() {
				due := <-tick.C
				if _, err := r.Overview(b.Context(), "ann", one); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(due))
			}
			b.ReportMetric(float64(lists.Load())/time.Since(begin).Seconds(), "lists/s")
			close(stop)
			wg.Wait()
			slices.Sort(took)
			for p, name := range map[int]string{50: "p50-ms", 99: "p99-ms"} {
				b.ReportMetric(took[len(took)*p/100].Seconds()*1000, name)
			}
		})
	}
}

// BenchmarkMemoryOfLists measures what ten lists of a user with 100,000 chats hold while
// their pages are taken.
func BenchmarkMemoryOfLists(b *testing.B) {
	r, s, now := bench(b)
	writeChats(b, s, "bob", 100_000, now)
	for b.Loop() {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { pagesOf(b, r, "bob", "") })
		}
		highest := uint64(0)
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		for sample := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-done:
				sample.Stop()
				b.ReportMetric(float64(highest)/(1<<20), "MiB")
				runtime.KeepAlive(r)
			case <-sample.C:
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				highest = max(highest, m.HeapInuse)
				continue
			}
			break
		}
	}
}

// writeChats writes the rows of a user's chats; ten of them changed in the last
// hour.
func writeChats(b *testing.B, s store.Store, user string, n int, now time.Time) {
	var writes []store.Write
	put := func(k store.Key, it store.Item) {
		writes = append(writes, store.Write{Op: store.OpPut, Key: k, Item: it})
	}
	for i := range n {
		id := fmt.Sprintf("chat_%026d", i*7919%1_000_003) // in no order of time
		at := now.Add(-time.Duration(i) * 6 * time.Minute).UnixMilli()
		put(table.HeadKey(id), table.Head{
			Version: 100, Sequence: 90, MembershipVersion: 10, ChangedAt: at, LastAt: at, LastSequence: 90, LastSender: "ann",
			LastPreview: "The last message of a chat, as long as such messages are.",
		}.Item())
		put(table.ChatKey(id), table.Chat{
			Type: table.Group, Name: "A group of people", CreatedBy: "ann", Status: table.Active, History: table.All,
			MemberCount: 12, CreatedAt: at, UpdatedAt: at, Version: 10,
		}.Item())
		put(table.UserChatKey(user, id), table.UserChat{Role: table.Member, Revision: 7, History: table.All, ReadSequence: 80,
			DeliveredSequence: 90, ChangedAt: at}.Item())
		if len(writes) >= store.MaxBatchWrite-3 || i == n-1 {
			if err := s.BatchWrite(context.Background(), writes); err != nil {
				b.Fatal(err)
			}
			writes = writes[:0]
		}
	}
}
