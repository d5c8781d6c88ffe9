package delivery_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// What it costs that something may have been lost: each of 300 streams of three
// users, in 20 chats, synchronises again.
func BenchmarkInvalidateAll(b *testing.B) {
	w := newFixture(b, func(c *delivery.Config) { c.Spread, c.MaxStreams = time.Millisecond, 100 })
	for range 20 {
		w.group(table.All, "alice", "bob", "carol")
	}
	var devices []*device
	for _, user := range []string{"alice", "bob", "carol"} {
		for range 100 {
			devices = append(devices, w.open(user, ""))
		}
	}
	w.performWork()
	for _, lost := range []int{0, 20} {
		b.Run(fmt.Sprintf("lost=%d", lost), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				w.lose()
				for _, c := range w.commits[:lost] {
					w.send("alice", c.ChatID, "x")
				}
				b.StartTimer()
				w.hub.InvalidateAll()
				w.performWork()
				b.StopTimer()
				for _, d := range devices {
					d.frames = nil
					d.take()
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(len(devices)), "µs/stream")
		})
	}
}

// What ten streams cost of a user with 10,000 chats: while they open, all at once, with a
// full list or a token, and when they are open.
func BenchmarkManyChats(b *testing.B) {
	const chats, streams = 10_000, 10
	w := newFixture(b, nil)
	for i := range chats {
		w.put(i, "bob")
	}
	for _, token := range []string{"", w.view.NewToken("bob", view.Start{At: w.now.Add(time.Hour)})} {
		b.Run(fmt.Sprintf("token=%t", token != ""), func(b *testing.B) {
			w.now = w.now.Add(2 * time.Hour)
			var before, now runtime.MemStats
			var peak, open uint64
			for b.Loop() {
				b.StopTimer()
				runtime.GC()
				runtime.ReadMemStats(&before)
				b.StartTimer()
				var devices []*device
				for range streams {
					devices = append(devices, w.register("bob", token))
				}
				for step, done := 0, false; !done; step++ {
					for _, d := range devices {
						var err error
						done, err = d.s.Step(w.ctx)
						w.must(err)
						d.s.Take(256)
					}
					if step%32 == 0 {
						b.StopTimer()
						runtime.GC()
						runtime.ReadMemStats(&now)
						peak = max(peak, now.HeapAlloc-before.HeapAlloc)
						b.StartTimer()
					}
				}
				b.StopTimer()
				runtime.GC()
				runtime.ReadMemStats(&now)
				open = now.HeapAlloc - before.HeapAlloc
				for _, d := range devices {
					w.hub.Close(d.s)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(open)/streams/chats, "bytes/stream-chat")
			b.ReportMetric(float64(peak)/(1<<20), "MiB-peak")
		})
	}
}
