package commitlogtest

import (
	"math/rand/v2"
	"testing"

	"github.com/parley-chat/parley/server/commitlog"
)

// The size of a topic grows with what is published to any of its partitions, and goes with it. Of
// other topics it says nothing.
func size(t *testing.T, f *fixture) {
	of := func(topic uint64) int64 {
		t.Helper()
		n, err := f.Size(t.Context(), topic, 2)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := of(f.at.Topic); n != 0 {
		t.Fatalf("an empty topic has %d bytes", n)
	}
	const each = 500_000
	var ends [2]int64
	for i := range 6 {
		m := Message(i)
		m.Payload = make([]byte, each)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(m.Payload)
		number := int32(i % 2)
		got, err := f.Append(t.Context(), []commitlog.Append{{
			Partition: commitlog.Partition{Topic: f.at.Topic, Number: number}, Messages: []*commitlog.Message{m},
		}})
		if err != nil {
			t.Fatal(err)
		}
		ends[number] = got[0].Base + 1
	}
	if n := of(f.at.Topic); n < 6*each || n > 6*each*11/10 {
		t.Errorf("a topic with %d bytes of payloads has %d", 6*each, n)
	}
	if n := of(f.at.Topic + 1); n != 0 {
		t.Errorf("an empty topic beside it has %d bytes", n)
	}
	for number, end := range ends {
		if _, err := f.Trim(t.Context(), commitlog.Partition{Topic: f.at.Topic, Number: int32(number)}, end); err != nil {
			t.Fatal(err)
		}
	}
	if n := of(f.at.Topic); n != 0 {
		t.Errorf("a topic without messages has %d bytes", n)
	}
	if err := f.Delete(t.Context(), f.at.Topic); err != nil {
		t.Fatal(err)
	}
	if n := of(f.at.Topic); n != 0 {
		t.Errorf("a topic that was removed has %d bytes", n)
	}
}
