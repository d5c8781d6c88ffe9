package kafka

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// Reopening a log of events of 300 bytes, 20 to a batch: the time, and the memory
// that is in use afterwards.
func BenchmarkReopen(b *testing.B) {
	for _, mb := range []int{16, 128} {
		b.Run(fmt.Sprint(mb, "MB"), func(b *testing.B) {
			dir := b.TempDir()
			open := func() *Broker {
				broker, err := OpenBroker(BrokerConfig{Dir: dir, Listen: "127.0.0.1:0"})
				if err != nil {
					b.Fatal(err)
				}
				return broker
			}
			broker := open()
			c, err := NewTransactional(broker.Addr(), "bench")
			if err != nil {
				b.Fatal(err)
			}
			value := make([]byte, 300)
			for n := 0; n < mb<<20; {
				var records []*Record
				for partition := range int32(64) {
					for range 20 {
						for i := range value { // does not compress
							value[i] = byte(n*31 + i*i*7 + len(records)*13)
						}
						records = append(records, &Record{Topic: MessagesPersisted, Partition: partition,
							Value: append([]byte(nil), value...)})
						n += len(value)
					}
				}
				if err := Transact(b.Context(), c, records); err != nil {
					b.Fatal(err)
				}
			}
			c.Close()
			broker.Close()
			b.ResetTimer()
			var took time.Duration
			var used uint64
			for range b.N {
				runtime.GC()
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := time.Now()
				broker := open()
				took += time.Since(start)
				runtime.GC()
				runtime.ReadMemStats(&after)
				used = max(used, after.HeapAlloc-min(before.HeapAlloc, after.HeapAlloc))
				b.StopTimer()
				broker.Close()
				b.StartTimer()
			}
			b.ReportMetric(took.Seconds()*1000/float64(b.N), "ms/open")
			b.ReportMetric(float64(used)/(1<<20), "MB-heap")
		})
	}
}
