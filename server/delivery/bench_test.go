package delivery_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store/table"
)

// What it costs that something may have been lost: each of 300 streams of three
// users, in 20 chats, synchronises anew.
func BenchmarkMarkDirty(b *testing.B) {
	w := newWorld(b, func(c *delivery.Config) { c.Spread, c.MaxStreams = time.Millisecond, 100 })
	for range 20 {
		w.group(table.All, "alice", "bob", "carol")
	}
	var devices []*device
	for _, user := range []string{"alice", "bob", "carol"} {
		for range 100 {
			devices = append(devices, w.open(user, ""))
		}
	}
	w.settle()
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
				w.hub.MarkDirty()
				w.settle()
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
