package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What the producers' and consumers' clients were made with, read back from them
// (K-033, K-058…K-067, K-091…K-098, EV13, EV16).
func TestClientSettings(t *testing.T) {
	const addr = "127.0.0.1:1" // nothing is sent
	relay, err := NewTransactional(addr, "slot")
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	deadLetters, err := NewProducer(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer deadLetters.Close()
	s, err := NewSession(SessionConfig{Addr: addr, Group: "g", Topics: []string{ChatsCreated},
		Assigned: func([]Partition) {}, Gone: func([]Partition, bool) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := func(c *kgo.Client, option any, want any) {
		t.Helper()
		if got := c.OptValue(option); got != want {
			t.Errorf("%v, not %v", got, want)
		}
	}
	for _, c := range []*kgo.Client{relay, deadLetters} {
		want(c, kgo.RequiredAcks, kgo.AllISRAcks())
		want(c, kgo.DisableIdempotentWrite, false)
		want(c, kgo.AllowIdempotentProduceCancellation, false)
		want(c, kgo.RecordRetries, int64(3))
		want(c, kgo.RecordDeliveryTimeout, 30*time.Second)
		if codecs := c.OptValue(kgo.ProducerBatchCompression).([]kgo.CompressionCodec); len(codecs) != 1 ||
			codecs[0] != kgo.Lz4Compression() {
			t.Errorf("compression %v", codecs)
		}
		if d := c.OptValue(kgo.ProduceRequestTimeout).(time.Duration); d > 29995*time.Millisecond {
			t.Errorf("a request may take %s", d)
		}
		wait := c.OptValue(kgo.RetryBackoffFn).(func(int) time.Duration)
		// L-117
		for i, want := range []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second,
			2 * time.Second} {
			if d := wait(i + 1); d != want {
				t.Errorf("retry %d comes after %s", i+1, d)
			}
		}
	}
	want(relay, kgo.ProducerLinger, 5*time.Millisecond)
	want(relay, kgo.TransactionTimeout, 10*time.Second)
	if n := relay.OptValue(kgo.ProducerBatchMaxBytes).(int32); n < MaxEvent {
		t.Errorf("a batch of %d bytes does not hold the largest event", n)
	}
	want(s.c, kgo.SessionTimeout, 30*time.Second)
	want(s.c, kgo.HeartbeatInterval, 10*time.Second)
	want(s.c, kgo.RebalanceTimeout, 300*time.Second)
	want(s.c, kgo.DisableAutoCommit, true)
	want(s.c, kgo.BlockRebalanceOnPoll, true)
	want(s.c, kgo.FetchIsolationLevel, int8(1)) // read_committed
	want(s.c, kgo.ConsumeResetOffset, kgo.NewOffset().AtStart())
	if MaxPoll != 500 {
		t.Errorf("a poll brings %d records", MaxPoll)
	}
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}
