package record

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store/embedded"
)

func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Events that are on the disk when they are answered, from 32 callers: one at a time, and by
// the hundred.
func BenchmarkRecord(b *testing.B) {
	for _, of := range [][2]int{{1, 1}, {1, 4}, {100, 1}, {100, 4}} {
		size, lanes := of[0], of[1]
		b.Run(fmt.Sprintf("%d/lanes=%d", size, lanes), func(b *testing.B) {
			st, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = st.Close() })
			r := New(Config{Store: st, Clock: time.Now, Retention: time.Hour, Lanes: lanes,
				NewID: func(prefix string) string { return prefix + ulid.Make().String() }})
			var users atomic.Int64
			b.SetParallelism(16)
			before := cpu()
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				user := fmt.Sprint("user_", users.Add(1))
				events := make([]search.Event, size)
				for i := range events {
					events[i] = search.Event{ClientID: "c83f0d1e-6a1c-4f4e-9a53-0f5f1c6d9a10", Content: &searchv1.SearchImpression{
						SearchId: "4b7c1a52-9d27-44f2-a6c9-1f6a6a5e2f11", Query: "tea time", ResultIds: []string{
							"msg_01J0000000000000000000000A", "msg_01J0000000000000000000000B", "msg_01J0000000000000000000000C"}}}
				}
				for p.Next() {
					if _, err := r.Record(context.Background(), user, events); err != nil {
						b.Error(err)
						return
					}
				}
			})
			n := float64(b.N * size)
			b.ReportMetric(n/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/n, "cpu-ns/event")
		})
	}
}
