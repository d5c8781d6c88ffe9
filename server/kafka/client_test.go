package kafka

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What the producers' and consumers' clients were made with, read back from them
// (K-033, K-058…K-067, K-091…K-098, EV13, EV16).
func TestClientSettings(t *testing.T) {
	b := openBroker(t, t.TempDir())
	relay, err := NewTransactional(b.Addr(), "slot")
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	letters, err := NewProducer(b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer letters.Close()
	s, err := NewSession(SessionConfig{Addr: b.Addr(), Group: "g", Topics: []string{ChatsCreated},
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
	for _, c := range []*kgo.Client{relay, letters} {
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

// A log whose topics have other numbers of partitions than declared is refused: a
// chat's events would go to another partition (K-045, K-048).
func TestOtherPartitionCountIsRefused(t *testing.T) {
	dir := t.TempDir()
	b := openBroker(t, dir)
	c, err := NewProducer(b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	req := kmsg.NewPtrCreatePartitionsRequest()
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = ChatsCreated, 17
	req.Topics = append(req.Topics, topic)
	req.TimeoutMillis = 5000
	res, err := req.RequestWith(limited(t), c)
	if err != nil || res.Topics[0].ErrorCode != 0 {
		t.Fatal(res, err)
	}
	b.Close()
	if b, err := OpenBroker(BrokerConfig{Dir: dir, Listen: "127.0.0.1:0"}); err == nil ||
		!strings.Contains(err.Error(), "17 partitions") {
		if err == nil {
			b.Close()
		}
		t.Fatal(err)
	}
}

// More connections than the port takes do not disturb those that are there, and
// when they go the port takes new ones.
func TestThousandConnections(t *testing.T) {
	b := openBroker(t, t.TempDir())
	c, err := NewTransactional(b.Addr(), "early")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	record := func(v string) []*Record {
		return []*Record{{Topic: ChatsCreated, Partition: 3, Value: []byte(v)}}
	}
	if err := Transact(limited(t), c, record("before")); err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for range 1000 {
		conn, err := net.DialTimeout("tcp", b.Addr(), 5*time.Second)
		if err != nil {
			break // the system's queue is full, too
		}
		conns = append(conns, conn)
	}
	if len(conns) < 64 {
		t.Fatalf("%d connections", len(conns))
	}
	if err := Transact(limited(t), c, record("meanwhile")); err != nil {
		t.Fatal(err)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	publish(t, b.Addr(), "after")
	if got := read(t, b.Addr(), 3); !slices.Equal(got, []string{"before", "meanwhile", "after"}) {
		t.Fatalf("read %q", got)
	}
}

// Requests whose head is right and whose rest is noise end their connection and
// nothing else.
func TestNoiseInRequests(t *testing.T) {
	b := openBroker(t, t.TempDir())
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 2 * 93 {
		conn, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		body := make([]byte, 8+rng.IntN(200))
		for i := range body {
			body[i] = byte(rng.Uint32())
		}
		key := int16(n % 93)
		if kmsg.RequestForKey(key) == nil {
			key = 0
		}
		binary.BigEndian.PutUint16(body, uint16(key))
		binary.BigEndian.PutUint16(body[2:], uint16(rng.IntN(int(kmsg.RequestForKey(key).MaxVersion())+1)))
		frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
		_, _ = conn.Write(frame)
		_ = conn.(*net.TCPConn).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	publish(t, b.Addr(), "still here")
	if got := read(t, b.Addr(), 1); len(got) != 1 {
		t.Fatalf("read %q", got)
	}
}
