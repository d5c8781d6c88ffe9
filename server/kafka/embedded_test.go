package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func openBroker(t *testing.T, dir string) *Broker {
	t.Helper()
	b, err := OpenBroker(BrokerConfig{Dir: dir, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func openBrokerWith(t *testing.T, cfg BrokerConfig) *Broker {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	b, err := OpenBroker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func publish(t *testing.T, addr string, values ...string) {
	t.Helper()
	c, err := NewTransactional(addr, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := limited(t)
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		c.Produce(ctx, &Record{Topic: ChatsCreated, Partition: 3, Value: []byte(v)}, nil)
	}
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, addr string, n int) (values []string) {
	t.Helper()
	c, err := NewReader(addr, ChatsCreated)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := limited(t)
	for len(values) < n && ctx.Err() == nil {
		c.PollFetches(ctx).EachRecord(func(r *Record) { values = append(values, string(r.Value)) })
	}
	return values
}

func TestBrokerKeepsItsLog(t *testing.T) {
	dir := t.TempDir()
	b := openBroker(t, dir)
	publish(t, b.Addr(), "one", "two")
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.Bytes() == 0 {
		t.Fatal("the log is empty")
	}
	b.Close()
	b = openBroker(t, dir)
	publish(t, b.Addr(), "three")
	if got := strings.Join(read(t, b.Addr(), 3), " "); got != "one two three" {
		t.Fatalf("read %q", got)
	}
	for _, topic := range Topics() {
		if n := len(b.cluster.PartitionInfos(topic.Name)); n != int(topic.Partitions) {
			t.Errorf("%s has %d partitions", topic.Name, n)
		}
	}
}

func TestStartErrors(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for listen, says := range map[string]string{
		busy.Addr().String(): "in use", "0.0.0.0:9092": "loopback", "9092": "host:port", "127.0.0.1:x": "port",
	} {
		if _, err := OpenBroker(BrokerConfig{Dir: t.TempDir(), Listen: listen}); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", listen, err)
		}
	}
	b, err := OpenBroker(BrokerConfig{Dir: t.TempDir(), Listen: busy.Addr().String(), Fallback: true})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// What is no request is cut off, and the broker keeps running.
func TestGuardStopsWhatIsNoRequest(t *testing.T) {
	b := openBroker(t, t.TempDir())
	frame := func(size uint32, key uint16, rest int) []byte {
		f := binary.BigEndian.AppendUint32(nil, size)
		f = binary.BigEndian.AppendUint16(f, key)
		return append(f, make([]byte, rest)...)
	}
	random := make([]byte, 4096)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	random[0] = 0x7f // a length beyond any limit
	for name, bytes := range map[string][]byte{
		"random":      random,
		"huge frame":  frame(1<<31-1, 18, 10),
		"tiny frame":  frame(2, 18, 10),
		"unknown key": frame(100, 31000, 98),
		"http":        []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
	} {
		c, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = c.Write(bytes)
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: the broker answered %d bytes", name, n)
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays open", name)
		}
		_ = c.Close()
	}
	publish(t, b.Addr(), "still here")
	if got := read(t, b.Addr(), 1); len(got) != 1 {
		t.Fatalf("read %q", got)
	}
}

// K-001…K-015, K-028.
func TestDeclaredTopics(t *testing.T) {
	type declared struct {
		partitions       int32
		retention, bytes string
	}
	want := map[string]declared{
		"messages.persisted":  {64, "604800000", "107374182400"},
		"memberships.changed": {16, "604800000", "10737418240"},
		"chats.created":       {16, "604800000", "10737418240"},
		"dead_letters":        {8, "2592000000", "53687091200"},
	}
	for _, name := range []string{"search_impression_v1", "search_result_summary_v1", "search_click_v1", "search_dwell_v1",
		"ac_impression_v1", "ac_select_v1"} {
		want[name] = declared{8, "604800000", "26843545600"}
		want[name+".dlq"] = declared{1, "2592000000", "1073741824"}
	}
	if len(Topics()) != len(want) {
		t.Fatalf("%d topics", len(Topics()))
	}
	for _, topic := range Topics() {
		w := want[topic.Name]
		if topic.Partitions != w.partitions || Partitions(topic.Name) != w.partitions {
			t.Errorf("%s has %d partitions", topic.Name, topic.Partitions)
		}
		for name, value := range map[string]string{
			"cleanup.policy": "delete", "min.insync.replicas": "2", "retention.ms": w.retention, "retention.bytes": w.bytes,
			"message.timestamp.type": "CreateTime", "compression.type": "producer",
		} {
			if topic.Configs[name] != value {
				t.Errorf("%s: %s is %q, not %q", topic.Name, name, topic.Configs[name], value)
			}
		}
		// An event may be as large as a topic takes; its dead letter holds it in base64.
		least := MaxEvent
		if topic.Name == DeadLetters {
			least = (4*MaxEvent+2)/3 + 64<<10
		}
		if n, err := strconv.Atoi(topic.Configs["max.message.bytes"]); err != nil || n < least {
			t.Errorf("%s takes %q bytes, not %d", topic.Name, topic.Configs["max.message.bytes"], least)
		}
	}
}
