//go:build !windows

package kafka

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// BenchmarkPacedTransactions publishes one event every 20 ms to the embedded broker, as a
// relay does whose chats are quiet, by a client of the process, and measures the processor
// time of a transaction on both sides.
func BenchmarkPacedTransactions(b *testing.B) {
	broker, err := OpenBroker(BrokerConfig{Dir: b.TempDir(), Listen: "127.0.0.1:0", Readers: "secret"})
	if err != nil {
		b.Fatal(err)
	}
	defer broker.Close()
	p, err := NewPublisher(broker.Addr(), "bench", broker.Options()...)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	value := make([]byte, 300) // like an event: it does not compress
	_, _ = rand.NewChaCha8([32]byte{}).Read(value)
	publish := func() {
		if err := p.Publish(b.Context(), []*Record{{Topic: MessagesPersisted, Value: value}}); err != nil {
			b.Fatal(err)
		}
	}
	publish()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	used := time.Duration(0)
	b.ResetTimer()
	for range b.N {
		<-tick.C
		before := processorTime(b)
		publish()
		used += processorTime(b) - before
	}
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-µs/txn")
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
