package topic

import (
	"fmt"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
)

// BenchmarkRetain is a cycle of the job that trims over many open topics with three groups
// each: one in which nothing is old enough, and one in which something is in each.
func BenchmarkRetain(b *testing.B) {
	const topics = 1000
	x, c := &fixture{t: b, logs: &lines{}, audit: &lines{}}, &calls{}
	x.disk = embeddedtest.NewDisk(nil)
	x.wrap = func(s store.Store) store.Store { return countedStore{s, c} }
	x.over = func(l commitlog.Log) commitlog.Log { return countedLog{l, c} }
	x.start()
	defer func() { x.stop() }()
	for i := range topics {
		x.groups(fmt.Sprint("t", i), "g0", "g1", "g2")
	}
	publish := func() {
		for i := range topics {
			x.publish(fmt.Sprint("t", i), 0, 1)
		}
	}
	for _, old := range []bool{false, true} {
		b.Run(fmt.Sprintf("old=%t", old), func(b *testing.B) {
			publish()
			x.jobs.Retain(b.Context())
			reads, writes := c.reads.Load(), c.writes.Load()
			for b.Loop() {
				if old {
					b.StopTimer()
					publish()
					x.ahead.Add(int64(31 * 24 * time.Hour))
					b.StartTimer()
				}
				x.jobs.Retain(b.Context())
			}
			n := float64(b.N) * topics
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/topic")
			b.ReportMetric(float64(c.reads.Load()-reads)/n, "reads/topic")
			b.ReportMetric(float64(c.writes.Load()-writes)/n, "writes/topic")
		})
	}
}
