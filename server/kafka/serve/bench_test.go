package serve_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/serve"
)

// prose makes a record as chats have them: a key, three headers and some words, of which text has 40 kinds.
func prose(rng *rand.Rand, i int) *kgo.Record {
	var b bytes.Buffer
	for b.Len() < 300 {
		fmt.Fprintf(&b, "word%d ", rng.IntN(40)*rng.IntN(40))
	}
	return &kgo.Record{Key: fmt.Appendf(nil, "chat-%020d", i%100), Value: b.Bytes(), Timestamp: time.UnixMilli(int64(i)),
		Headers: []kgo.RecordHeader{{Key: "event_id", Value: fmt.Appendf(nil, "%032x", rng.Uint64())},
			{Key: "event_type", Value: []byte("message.persisted")}, {Key: "generation", Value: []byte("1")}}}
}

// A fetch of 1 MiB of records by TCP, without what a client does with it. The log's own work is not in it.
func BenchmarkFetch(b *testing.B) {
	s := start(b, open)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 5000 {
		s.log.append(first, prose(rng, i))
	}
	c := s.raw(b)
	req := fetchOf(12, at(first, 0))
	testkit.Must(b, c.SetDeadline(time.Time{}))
	batches := c.fetch(b, req).Topics[0].Partitions[0].RecordBatches
	list, _ := unpack(b, batches)
	records := len(list)
	b.SetBytes(int64(len(batches)))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		testkit.Must(b, c.ask(req))
		testkit.Value(c.frame())(b)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*records), "ns/record")
	b.ReportMetric(float64(records), "records")
}

// What compressing a batch of 1 MiB would cost, and what it would save.
func BenchmarkBatch(b *testing.B) {
	s := start(b, open)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 5000 {
		s.log.append(first, prose(rng, i))
	}
	plain := s.raw(b).fetch(b, fetchOf(12, at(first, 0))).Topics[0].Partitions[0].RecordBatches
	for name, codec := range map[string]kgo.CompressionCodec{
		"lz4": kgo.Lz4Compression(), "snappy": kgo.SnappyCompression(),
		"zstd": kgo.ZstdCompression(), "none": kgo.NoCompression(),
	} {
		b.Run(name, func(b *testing.B) {
			c := testkit.Value(kgo.DefaultCompressor(codec))(b)
			b.SetBytes(int64(len(plain)))
			size := len(plain)
			for range b.N {
				if c != nil {
					out, _ := c.Compress(new(bytes.Buffer), plain)
					size = len(out)
				} else {
					_ = append([]byte(nil), plain...)
				}
			}
			b.ReportMetric(float64(size)/float64(len(plain)), "size")
		})
	}
}

// A fetch of 200 partitions without news, as an idle reader sends it twice a second.
func BenchmarkIdleFetch(b *testing.B) {
	s := start(b, func(c *serve.Config) {
		c.Users, c.Log = nil, newMemoryLog(kafka.Topic{Name: events, ID: [16]byte{1}, Partitions: 200})
	})
	var list []kafka.Position
	for i := range int32(200) {
		list = append(list, at(kafka.Partition{Topic: events, ID: i}, 0))
	}
	c := s.raw(b)
	testkit.Must(b, c.SetDeadline(time.Time{}))
	req := fetchOf(12, list...)
	req.SessionEpoch = 0
	id := c.fetch(b, req).SessionID
	req = fetchOf(12)
	req.SessionID = id
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		req.SessionEpoch = int32(i + 1)
		testkit.Must(b, c.ask(req))
		testkit.Value(c.frame())(b)
	}
}
