package kafka

import (
	"bytes"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Clients of the process do not ask the embedded broker for the state of transactions. They
// need not: when the broker has answered a transaction's end, readers of committed records
// have it, and the next transaction is accepted at once.
func TestTransactionsInTheProcessEndAtOnce(t *testing.T) {
	t.Parallel()
	b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), Readers: "secret"})
	c, err := NewTransactional(b.Addr(), "slot", b.Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var asked, produced atomic.Int64
	count := func(key kmsg.Key, n *atomic.Int64) {
		b.cluster.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			b.cluster.KeepControl()
			n.Add(1)
			return nil, nil, false
		})
	}
	count(kmsg.DescribeTransactions, &asked)
	count(kmsg.Produce, &produced)
	others, err := NewProducer(b.Addr(), b.port.Options(b.own)...)
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	admin := kadm.NewClient(others)
	const transactions = 20
	for i := range transactions {
		err := Transact(limited(t), c, []*Record{{Topic: ChatsCreated, Partition: int32(i % 3), Value: []byte("x")}})
		if err != nil {
			t.Fatal(err)
		}
		if n := asked.Load(); n != 0 {
			t.Fatalf("the publisher asked %d times for the state of its transaction, want 0", n)
		}
		list, err := admin.DescribeTransactions(limited(t), "slot")
		if err != nil {
			t.Fatal(err)
		}
		if got := list["slot"].State; got == "Ongoing" || got == "PrepareCommit" {
			t.Fatalf("transaction %d is answered in the state %s", i, got)
		}
		asked.Store(0)
		info := b.cluster.PartitionInfo(ChatsCreated, int32(i%3))
		if info.LastStableOffset != info.HighWatermark {
			t.Fatalf("readers of committed records see up to %d of %d", info.LastStableOffset, info.HighWatermark)
		}
	}
	if n := produced.Load(); n != transactions {
		t.Errorf("%d transactions took %d requests to produce, want one each", transactions, n)
	}
}

// Clients of the process compress large batches only; others compress all.
func TestSmallBatchesInTheProcessAreNotCompressed(t *testing.T) {
	t.Parallel()
	b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), Readers: "secret"})
	c, err := NewTransactional(b.Addr(), "slot", b.Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	own := c.OptValue(kgo.WithCompressor).(kgo.Compressor)
	for n, codec := range map[int]kgo.CompressionCodecType{plainBelow - 1: kgo.CodecNone, plainBelow: kgo.CodecLz4} {
		out, got := own.Compress(&bytes.Buffer{}, make([]byte, n))
		if got != codec || codec != kgo.CodecNone && len(out) > n/2 {
			t.Errorf("%d bytes are compressed by %v to %d, want %v", n, got, len(out), codec)
		}
	}
	other, err := NewTransactional(b.Addr(), "slot", b.port.Options(b.own)...)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, large := other.OptValue(kgo.WithCompressor).(largeOnly); large || !EndsLater(other) || EndsLater(c) {
		t.Errorf("another process: small batches plain %t, asks for the end %t, in the process %t; want false, true, false",
			large, EndsLater(other), EndsLater(c))
	}
	sizes := []int{1, plainBelow, 3 * plainBelow}
	for _, n := range sizes { // what is read is what was written
		err := Transact(limited(t), c, []*Record{{Topic: ChatsCreated, Value: bytes.Repeat([]byte{'a'}, n)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	reader, err := NewReaderWith(b.Options(), b.Addr(), ChatsCreated)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var got []int
	for len(got) < len(sizes) && limited(t).Err() == nil {
		reader.PollFetches(limited(t)).EachRecord(func(r *kgo.Record) { got = append(got, len(r.Value)) })
	}
	if !slices.Equal(got, sizes) {
		t.Errorf("records of %v bytes are read, want %v", got, sizes)
	}
}

// A session asks for as many bytes as it is to wait for, and for as long.
func TestFetchesOfASessionWait(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		bytes     int32
		wait      time.Duration
		wantBytes int32
		wantWait  int32 // ms
	}{
		{0, 0, 1, 200},
		{4096, 1500 * time.Millisecond, 4096, 1500},
	} {
		b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), Readers: "secret"})
		asked := make(chan *kmsg.FetchRequest, 1)
		b.cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
			asked <- req.(*kmsg.FetchRequest) // the first one
			return nil, nil, false
		})
		s, err := NewSession(SessionConfig{
			Addr: b.Addr(), Options: b.Options(), Group: "waiting", Topics: []string{ChatsCreated}, MinFetch: tt.bytes,
			MaxWait: tt.wait, Assigned: func([]Partition) {}, Gone: func([]Partition, bool) {},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		select {
		case req := <-asked:
			if req.MinBytes != tt.wantBytes || req.MaxWaitMillis != tt.wantWait {
				t.Errorf("a fetch waits for %d bytes and %d ms, want %d and %d", req.MinBytes, req.MaxWaitMillis,
					tt.wantBytes, tt.wantWait)
			}
		case <-limited(t).Done():
			t.Fatal("no fetch came")
		}
	}
}
