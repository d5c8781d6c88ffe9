package commitlog

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/event/eventtest"
)

func randomMessage(rng *rand.Rand) *Message {
	text := func(limit int) string { return strings.Repeat("☕", rng.IntN(limit)) }
	m := &Message{}
	if rng.IntN(2) == 0 {
		m.Key = text(200)
	}
	if rng.IntN(2) == 0 {
		m.Type = text(3)
	}
	if rng.IntN(2) == 0 {
		m.CorrelationId = text(60)
	}
	for n := range rng.IntN(4) {
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[fmt.Sprint(text(40), n)] = text(2000)
	}
	if rng.IntN(3) > 0 {
		m.Payload = make([]byte, rng.IntN(1+rng.IntN(40_000)))
		for i := range m.Payload {
			m.Payload[i] = byte(rng.Uint32())
		}
	}
	m.PublishTime = timestamppb.New(time.Unix(7, 7)) // of the client, does not count
	return m
}

// The parts of a body are the messages of a delivery, as the generated code reads them.
func TestBodyIsADelivery(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var list []*Message
		for range 1 + rng.IntN(6) {
			list = append(list, randomMessage(rng))
		}
		at := time.UnixMilli(rng.Int64N(4_000_000_000_000))
		b, err := NewBatch(100, at, list)
		if err != nil {
			t.Fatal(err)
		}
		i := rng.IntN(b.Count())
		j := i + 1 + rng.IntN(b.Count()-i)
		if b.Size(i, j) != len(b.Bytes(i, j)) {
			t.Fatalf("size %d of %d bytes", b.Size(i, j), len(b.Bytes(i, j)))
		}
		var d topicv1.Delivery
		if err := proto.Unmarshal(b.Bytes(i, j), &d); err != nil || len(d.GetMessages()) != j-i {
			t.Fatalf("%d messages of %d, %v", len(d.GetMessages()), j-i, err)
		}
		for n, m := range d.GetMessages() {
			want := list[i+n]
			want.PublishTime = timestamppb.New(at)
			if !proto.Equal(m, want) {
				t.Fatalf("message is %v, want %v", m, want)
			}
			if single, err := b.Message(i + n); err != nil || !proto.Equal(single, want) {
				t.Fatalf("message alone is %v (%v), want %v", single, err, want)
			}
			if b.Key(i+n) != want.GetKey() || b.Type(i+n) != want.GetType() {
				t.Fatalf("key %q and type %q of %v", b.Key(i+n), b.Type(i+n), want)
			}
			for name, value := range want.GetHeaders() {
				if got, ok := b.Header(i+n, name); !ok || got != value {
					t.Fatalf("header %q is %q, want %q", name, got, value)
				}
			}
		}
	}
}

// A stored batch is read as it was; with any byte changed it is refused.
func TestStoredBatch(t *testing.T) {
	a := &Append{Partition: Partition{Topic: 3}, Producer: Producer{ID: "producer", Number: 1 << 40},
		Messages: []*Message{{Key: "k", Payload: []byte("one")}, {Type: "t"}}}
	d, err := newDraft(a, 1_800_000_000_123)
	if err != nil {
		t.Fatal(err)
	}
	want := d.assignPosition(41, 0, a.Producer)
	got, err := parseBatch(d.value, 42)
	if err != nil || got.Base != 41 || got.End() != 43 || got.Time != want.Time || got.Producer != a.Producer ||
		!bytes.Equal(got.Bytes(0, 2), want.Bytes(0, 2)) {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	for i := range d.value {
		for bit := range 8 {
			broken := bytes.Clone(d.value)
			broken[i] ^= 1 << bit
			if _, err := parseBatch(broken, 42); err == nil {
				t.Errorf("bit %d of byte %d is not noticed", bit, i)
			}
		}
		if _, err := parseBatch(d.value[:i], 42); err == nil {
			t.Errorf("%d of %d bytes are enough", i, len(d.value))
		}
	}
	if _, err := parseBatch(d.value, 43); err == nil {
		t.Error("a batch is read at another place")
	}
}

var addGolden = flag.String("add-golden", "", "add the present encodings to the corpus, under this name")

// What released versions have written is read by all later ones; an encoding that changes
// is a new version. What is in the corpus is never rewritten:
//
//	go test ./server/commitlog -run Golden -add-golden v2
func TestGoldenRecords(t *testing.T) {
	a := &Append{Partition: Partition{Topic: 1 << 33, Number: 255}, Producer: Producer{ID: "p é", Number: 77},
		Messages: []*Message{{Key: "k", Type: "t", CorrelationId: "c", Headers: map[string]string{"b": "2", "a": "1"},
			Payload: []byte{0, 1, 255}}, {}}}
	d, err := newDraft(a, 1_800_000_000_123)
	if err != nil {
		t.Fatal(err)
	}
	batch := d.assignPosition(1<<40, 1<<33, a.Producer)
	published := a.published(batch.Base, batch.Time, batch.Count())
	producer := CarriedPublished(a.Partition, Published{Producer: "p é", Published: published})
	hashed := published
	hashed.Hash = HashOf(a.Messages)
	proven := CarriedPublished(a.Partition, Published{Producer: "p é", Published: hashed})
	trimmed := head{start: 5, end: 1 << 40, time: batch.Time}
	present := map[string][]byte{
		"batch-key": batchKey(a.Partition, batch.End()-1), "batch": CarriedBatch(a.Partition, batch).Value,
		"batch-counted": d.value,
		"head-key":      headKey(a.Partition), "head": trimmed.value(),
		"producer-key": producer.Key, "producer": producer.Value, "producer-hashed": proven.Value,
	}
	file := filepath.Join("testdata", "records.txt")
	if *addGolden != "" {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range slices.Sorted(maps.Keys(present)) {
			fmt.Fprintf(f, "%s %s %x\n", *addGolden, name, present[name])
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	corpus, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(string(corpus)) {
		fields := strings.Fields(line)
		b, err := hex.DecodeString(fields[2])
		if err != nil {
			t.Fatal(err)
		}
		lines++
		switch fields[1] {
		case "batch", "batch-counted":
			got, err := parseBatch(b, 1<<40+1)
			before := map[string]int64{"batch-counted": 1 << 33}[fields[1]]
			if err != nil || got.before != before || got.Base != batch.Base || got.Time != batch.Time ||
				got.Producer != batch.Producer {
				t.Errorf("batch of %s is %+v, %v", fields[0], got, err)
			}
		case "head":
			if h, err := parseHead(b); err != nil || h != trimmed {
				t.Errorf("head of %s is %+v, %v", fields[0], h, err)
			}
		case "producer":
			if n, err := parsePublished(b); err != nil || n != published {
				t.Errorf("producer of %s is %+v, %v", fields[0], n, err)
			}
		case "producer-hashed":
			if n, err := parsePublished(b); err != nil || n != hashed {
				t.Errorf("producer with a hash of %s is %+v, %v", fields[0], n, err)
			}
		}
		if !bytes.Equal(b, present[fields[1]]) {
			t.Errorf("%s is written as %x, %s had %x", fields[1], present[fields[1]], fields[0], b)
		}
	}
	if lines < 21 {
		t.Fatalf("the corpus has %d lines", lines)
	}
}

// Kafka's own vectors of murmur2, and the partitions that follow without its sign.
func TestPartitionOf(t *testing.T) {
	for key, hash := range map[string]int32{ // org.apache.kafka.common.utils.UtilsTest.testMurmur2
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		for _, n := range []int32{1, 2, 3, 12, 64, 255, 256} {
			if got, want := PartitionOf(key, n), (hash&0x7fffffff)%n; got != want {
				t.Errorf("partition of %q among %d is %d, want %d", key, n, got, want)
			}
		}
	}
	for _, v := range eventtest.Vectors() {
		for n, want := range v.Partitions {
			if got := PartitionOf(v.Key, int32(n)); got != int32(want) {
				t.Errorf("partition of %.20q among %d is %d, want %d", v.Key, n, got, want)
			}
		}
	}
}

func FuzzParseBatch(f *testing.F) {
	d, err := newDraft(&Append{Messages: []*Message{{Key: "k"}}}, 1)
	if err != nil {
		f.Fatal(err)
	}
	d.assignPosition(0, 0, Producer{})
	f.Add(d.value, int64(0))
	f.Fuzz(func(t *testing.T, value []byte, last int64) {
		b, err := parseBatch(value, last)
		if err != nil {
			return
		}
		for i := range b.Count() {
			_, _ = b.Key(i), b.Type(i)
			_, _ = b.Header(i, "h")
			if m, err := b.Message(i); err == nil && m == nil {
				t.Error("no message, and no error")
			}
		}
	})
}
