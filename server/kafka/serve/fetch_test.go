package serve_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/serve"
)

var (
	first  = kafka.Partition{Topic: events}
	second = kafka.Partition{Topic: events, ID: 1}
	third  = kafka.Partition{Topic: deadLetters}
)

// fetchOf makes a fetch of partitions from offsets on.
func fetchOf(version int16, at ...kafka.Position) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.SetVersion(version)
	req.MaxBytes, req.MinBytes, req.MaxWaitMillis, req.SessionEpoch = 8<<20, 1, 0, -1
	for _, p := range at {
		t := kmsg.NewFetchRequestTopic()
		t.Topic = p.Topic
		for _, known := range topics() {
			if known.Name == p.Topic {
				t.TopicID = known.ID
			}
		}
		fp := kmsg.NewFetchRequestTopicPartition()
		fp.Partition, fp.FetchOffset, fp.PartitionMaxBytes, fp.CurrentLeaderEpoch = p.ID, p.Offset, 1<<20, -1
		t.Partitions = append(t.Partitions, fp)
		req.Topics = append(req.Topics, t)
	}
	return req
}

func at(p kafka.Partition, offset int64) kafka.Position {
	return kafka.Position{Partition: p, Offset: offset}
}

// fetch sends a fetch.
func (c *raw) fetch(t testing.TB, req *kmsg.FetchRequest) *kmsg.FetchResponse {
	t.Helper()
	return testkit.Value(c.send(req))(t).(*kmsg.FetchResponse)
}

// text writes a response in one line: for each partition its name, code, end, and the offsets of its records.
func text(t testing.TB, res *kmsg.FetchResponse) string {
	t.Helper()
	var b strings.Builder
	if res.ErrorCode != 0 {
		fmt.Fprintf(&b, "code %d", res.ErrorCode)
	}
	for _, rt := range res.Topics {
		name := rt.Topic
		for _, known := range topics() {
			if known.ID == rt.TopicID && name == "" {
				name = known.Name
			}
		}
		for _, p := range rt.Partitions {
			fmt.Fprintf(&b, "%s/%d code %d [%d,%d)", name, p.Partition, p.ErrorCode, p.LogStartOffset, p.HighWatermark)
			records, next := unpack(t, p.RecordBatches)
			for _, r := range records {
				fmt.Fprintf(&b, " %d", r.Offset)
			}
			if next >= 0 {
				fmt.Fprintf(&b, " next %d", next)
			}
			b.WriteString("; ")
		}
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// unpack reads batches, and returns the offset after the last one; -1: there is none.
func unpack(t testing.TB, b []byte) (records []*kgo.Record, next int64) {
	t.Helper()
	next = -1
	for len(b) > 0 {
		var batch kmsg.RecordBatch
		n := 12 + int(binary.BigEndian.Uint32(b[8:]))
		testkit.Must(t, batch.ReadFrom(b[:n]))
		if sum := crc32.Checksum(b[21:n], crc32.MakeTable(crc32.Castagnoli)); int32(sum) != batch.CRC || batch.Magic != 2 {
			t.Fatalf("a batch of format %d with checksum %x, computed %x", batch.Magic, batch.CRC, sum)
		}
		b = b[n:]
		last := int64(-1)
		rest := batch.Records
		latest := int64(-1)
		for range batch.NumRecords {
			var r kmsg.Record
			size, bytes := binary.Varint(rest)
			testkit.Must(t, r.ReadFrom(rest[:bytes+int(size)]))
			rest = rest[bytes+int(size):]
			rec := &kgo.Record{Key: r.Key, Value: r.Value, Offset: batch.FirstOffset + int64(r.OffsetDelta),
				Timestamp: time.UnixMilli(batch.FirstTimestamp + r.TimestampDelta64)}
			for _, h := range r.Headers {
				rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
			}
			if rec.Offset <= last {
				t.Errorf("offset %d behind %d", rec.Offset, last)
			}
			last = rec.Offset
			latest = max(latest, rec.Timestamp.UnixMilli())
			if batch.Attributes&(1<<5) == 0 { // a control record is none of the log
				records = append(records, rec)
			}
		}
		if len(rest) > 0 || latest != batch.MaxTimestamp {
			t.Errorf("%d bytes behind the records; the greatest time is %d, and %d in the header", len(rest), latest,
				batch.MaxTimestamp)
		}
		next = batch.FirstOffset + int64(batch.LastOffsetDelta) + 1
	}
	return records, next
}

// record makes one whose value has as many bytes.
func record(size int) *kgo.Record {
	return &kgo.Record{Value: make([]byte, size), Timestamp: time.UnixMilli(1)}
}

// odd are records with all that the format allows.
func odd() []*kgo.Record {
	ms := func(n int64) time.Time { return time.UnixMilli(n) }
	return []*kgo.Record{
		{Key: []byte{0, 255}, Value: []byte("one"), Timestamp: ms(1_700_000_000_000)},
		{Value: []byte{}, Key: []byte{}, Timestamp: ms(1_800_000_000_123)},
		{Timestamp: ms(1_600_000_000_000), Headers: []kgo.RecordHeader{{Key: "a", Value: []byte{0}}, {Key: "a"},
			{Key: "", Value: []byte{}}}},
		{Value: make([]byte, 70_000), Timestamp: ms(0)},
	}
}

// Every version of Fetch returns the records as they are, also those whose offsets or times are too far apart
// for one batch.
func TestRecordsAreTheSame(t *testing.T) {
	b := start(t, open)
	want := odd()
	b.log.append(first, want[:2]...)
	b.log.skip(first, 5)
	b.log.append(first, want[2])
	b.log.skip(first, 1<<33)
	b.log.append(first, want[3])
	c := b.raw(t)
	for version := int16(4); version <= 18; version++ {
		for isolation := range int8(2) {
			req := fetchOf(version, at(first, 0))
			req.IsolationLevel = isolation
			p := c.fetch(t, req).Topics[0].Partitions[0]
			got, _ := unpack(t, p.RecordBatches)
			testkit.Equal(t, "records", len(got), len(want))
			for i, r := range got {
				w := *want[i]
				if !reflect.DeepEqual(*r, kgo.Record{Key: w.Key, Value: w.Value, Headers: w.Headers, Offset: w.Offset,
					Timestamp: w.Timestamp}) {
					t.Errorf("version %d: record %d is %.200v, expected %.200v", version, i, r, w)
				}
			}
			if (p.AbortedTransactions != nil) != (isolation == 1) || p.LastStableOffset != p.HighWatermark {
				t.Errorf("version %d: transactions %v, stable until %d", version, p.AbortedTransactions, p.LastStableOffset)
			}
		}
	}
}

// A client reads all records, from the start and behind gaps, and continues when there are more.
func TestClientReads(t *testing.T) {
	b := start(t, nil)
	b.log.append(first, odd()...)
	b.log.skip(first, 3)
	b.log.append(second, record(10))
	for _, level := range []kgo.IsolationLevel{kgo.ReadUncommitted(), kgo.ReadCommitted()} {
		c := b.client(t, kgo.ConsumeTopics(events), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.FetchIsolationLevel(level))
		n := 0
		for n < 5 {
			f := c.PollFetches(limited(t))
			testkit.Must(t, f.Err())
			n += f.NumRecords()
		}
		b.log.append(first, record(1))
		f := c.PollFetches(limited(t))
		testkit.Must(t, f.Err())
		testkit.Equal(t, "new records", f.NumRecords(), 1)
		b.log.mu.Lock()
		m := b.log.part(first)
		m.end, m.records = 7, m.records[:4]
		b.log.mu.Unlock()
		c.Close()
	}
}

// Offsets outside of the log, partitions that do not exist and what the log fails with have their codes.
func TestFetchRefuses(t *testing.T) {
	b := start(t, open)
	b.log.append(first, record(1), record(1), record(1))
	b.log.trim(first, 1)
	b.log.skip(first, 2)
	c := b.raw(t)
	other := fetchOf(13, at(first, 1))
	other.Topics[0].TopicID = [16]byte{9}
	epoch := fetchOf(12, at(first, 1))
	epoch.Topics[0].Partitions[0].CurrentLeaderEpoch = 1
	follower, late := fetchOf(12, at(first, 1)), fetchOf(15, at(first, 1))
	follower.ReplicaID, late.ReplicaState.ID = 1, 1
	for i, c2 := range []struct {
		req  *kmsg.FetchRequest
		want string
	}{
		{fetchOf(12, at(first, 0)), "events/0 code 1 [-1,-1)"},
		{fetchOf(12, at(first, 6)), "events/0 code 1 [-1,-1)"},
		{fetchOf(12, at(first, -1)), "events/0 code 1 [-1,-1)"},
		{fetchOf(12, at(first, 1)), "events/0 code 0 [1,5) 1 2 next 3"},
		{fetchOf(12, at(first, 3)), "events/0 code 0 [1,5) next 5"}, // the end is a gap
		{fetchOf(12, at(first, 5)), "events/0 code 0 [1,5)"},
		{fetchOf(4, at(kafka.Partition{Topic: "other"}, 0)), "other/0 code 3 [-1,-1)"},
		{fetchOf(18, at(kafka.Partition{Topic: events, ID: 4}, 0)), "events/4 code 3 [-1,-1)"},
		{fetchOf(18, at(kafka.Partition{Topic: events, ID: -1}, 0)), "events/-1 code 3 [-1,-1)"},
		{other, "/0 code 100 [-1,-1)"},
		{epoch, "events/0 code 75 [-1,-1)"},
		{follower, "events/0 code 29 [-1,-1)"},
		{late, "events/0 code 29 [-1,-1)"},
	} {
		got := text(t, c.fetch(t, c2.req))
		if c2.req.Version == 4 { // it has no start
			got = strings.Replace(got, "[0,", "[-1,", 1)
		}
		testkit.Equal(t, fmt.Sprint(i), got, c2.want)
	}
	b.log.mu.Lock()
	b.log.broken = errBroken
	b.log.mu.Unlock()
	testkit.Equal(t, "broken", text(t, c.fetch(t, fetchOf(12, at(first, 1)))), "events/0 code 56 [-1,-1)")
}

// Records that are trimmed while a fetch reads are no gap: the client learns that it has missed them.
func TestTrimmedWhileReading(t *testing.T) {
	for _, all := range []bool{false, true} {
		b := start(t, open)
		b.log.append(first, record(1), record(1), record(1))
		b.log.reading = func() {
			if b.log.trim(first, 2); all {
				b.log.trim(first, 3)
			}
		}
		testkit.Equal(t, "fetch", text(t, b.raw(t).fetch(t, fetchOf(12, at(first, 0)))), "events/0 code 1 [-1,-1)")
	}
}

// A response has as many bytes as the client allows, for each partition and for all, except that its first
// record is always there. What has no room comes first the next time.
func TestFetchSizes(t *testing.T) {
	b := start(t, open)
	for range 3 {
		b.log.append(first, record(10_000))
		b.log.append(second, record(10_000))
	}
	b.log.append(third, record(2<<20), record(10))
	for i, c := range []struct {
		all, part int32
		from      []kafka.Position
		want      string
	}{
		{1 << 20, 1 << 20, []kafka.Position{at(first, 0), at(second, 0)},
			"events/0 code 0 [0,3) 0 1 2 next 3; events/1 code 0 [0,3) 0 1 2 next 3"},
		{1 << 20, 21_000, []kafka.Position{at(first, 0), at(second, 0)},
			"events/0 code 0 [0,3) 0 1 next 2; events/1 code 0 [0,3) 0 1 next 2"},
		{25_000, 1 << 20, []kafka.Position{at(first, 0), at(second, 0)},
			"events/0 code 0 [0,3) 0 1 next 2; events/1 code 0 [0,3)"},
		{45_000, 1 << 20, []kafka.Position{at(first, 1), at(second, 0)},
			"events/0 code 0 [0,3) 1 2 next 3; events/1 code 0 [0,3) 0 1 next 2"},
		{1, 1, []kafka.Position{at(first, 0), at(second, 0)}, "events/0 code 0 [0,3) 0 next 1; events/1 code 0 [0,3)"},
		{0, 0, []kafka.Position{at(first, 0)}, "events/0 code 0 [0,3) 0 next 1"},
		{-1, -1, []kafka.Position{at(first, 2)}, "events/0 code 0 [0,3) 2 next 3"},
		{1 << 20, 1 << 20, []kafka.Position{at(third, 0)}, "letters/0 code 0 [0,2) 0 next 1"},
		{1<<31 - 1, 1<<31 - 1, []kafka.Position{at(first, 2), at(third, 0)},
			"events/0 code 0 [0,3) 2 next 3; letters/0 code 0 [0,2)"},
	} {
		req := fetchOf(12, c.from...)
		req.MaxBytes = c.all
		for j := range req.Topics {
			req.Topics[j].Partitions[0].PartitionMaxBytes = c.part
		}
		testkit.Equal(t, fmt.Sprint(i), text(t, b.raw(t).fetch(t, req)), c.want)
	}
}

// One response has at most 8 MiB, and 1 MiB of each partition, whatever the client requests.
func TestFetchIsBounded(t *testing.T) {
	many := kafka.Topic{Name: "many", ID: [16]byte{3}, Partitions: 12}
	l := newMemoryLog(many)
	b := start(t, func(c *serve.Config) { c.Users, c.Log = nil, l })
	var from []kafka.Position
	for i := range many.Partitions {
		p := kafka.Partition{Topic: many.Name, ID: i}
		for range 30 {
			l.append(p, record(100_000))
		}
		from = append(from, at(p, 0))
	}
	req := fetchOf(12, from...)
	req.MaxBytes = 1<<31 - 1
	total := 0
	for i := range req.Topics {
		req.Topics[i].Partitions[0].PartitionMaxBytes = 1<<31 - 1
	}
	for _, rt := range b.raw(t).fetch(t, req).Topics {
		for _, p := range rt.Partitions {
			if total += len(p.RecordBatches); len(p.RecordBatches) > 1<<20 {
				t.Errorf("%d bytes of one partition", len(p.RecordBatches))
			}
		}
	}
	if total > 8<<20 || total < 7<<20 {
		t.Errorf("a response of %d bytes", total)
	}
}

// inParts sends a fetch, and appends records one by one, each when the fetch has read the one before and waits.
func (b *broker) inParts(t *testing.T, c *raw, req *kmsg.FetchRequest, p kafka.Partition, size, n int) {
	t.Helper()
	b.log.mu.Lock()
	reads := b.log.reads
	b.log.mu.Unlock()
	testkit.Must(t, c.ask(req))
	for i := range n {
		testkit.Eventually(t, "the fetch waits", func() bool {
			b.log.mu.Lock()
			defer b.log.mu.Unlock()
			return b.log.waiting == 1 && b.log.reads == reads+i
		})
		b.log.append(p, record(size))
	}
}

// A fetch waits for records: one wakes it, or its time ends, and with too few bytes it waits for more.
func TestFetchWaits(t *testing.T) {
	b := start(t, open)
	c := b.raw(t)
	req := fetchOf(12, at(first, 0), at(second, 0))
	req.MaxWaitMillis = 60_000
	testkit.Must(t, c.ask(req))
	testkit.Eventually(t, "the fetch waits", func() bool { return b.log.waits() == 1 })
	b.log.append(third, record(1)) // of another topic
	b.log.append(second, record(100))
	res := testkit.Value(c.answer(req, c.correlation))(t).(*kmsg.FetchResponse)
	testkit.Equal(t, "woken", text(t, res), "events/0 code 0 [0,0); events/1 code 0 [0,1) 0 next 1")

	req = fetchOf(12, at(first, 0))
	req.MaxWaitMillis, req.MinBytes = 60_000, 250
	b.inParts(t, c, req, first, 100, 2) // a batch of one such record has 174 bytes
	res = testkit.Value(c.answer(req, c.correlation))(t).(*kmsg.FetchResponse)
	testkit.Equal(t, "enough", text(t, res), "events/0 code 0 [0,2) 0 1 next 2")

	req = fetchOf(12, at(second, 1)) // what it has read already counts once
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 60_000, 900, 1000
	b.inParts(t, c, req, second, 380, 2)
	res = testkit.Value(c.answer(req, c.correlation))(t).(*kmsg.FetchResponse)
	testkit.Equal(t, "in two parts", text(t, res), "events/1 code 0 [0,3) 1 2 next 3")

	req = fetchOf(12, at(first, 2))
	req.MaxWaitMillis = 10
	testkit.Equal(t, "over", text(t, c.fetch(t, req)), "events/0 code 0 [0,2)")
	req = fetchOf(12, at(first, 2), at(kafka.Partition{Topic: "other"}, 0))
	req.MaxWaitMillis = 1 << 30 // an error does not wait
	testkit.Equal(t, "error", text(t, c.fetch(t, req)), "events/0 code 0 [0,2); other/0 code 3 [-1,-1)")
}

// The end of a connection ends what waits for it, at once: a fetch and a request of a group.
func TestTheEndOfAConnection(t *testing.T) {
	b := start(t, open)
	req := fetchOf(12, at(first, 0))
	req.MaxWaitMillis = 1<<31 - 1
	var conns []*raw
	for range 20 {
		c := b.raw(t)
		testkit.Must(t, c.ask(req))
		conns = append(conns, c)
	}
	testkit.Eventually(t, "the fetches wait", func() bool { return b.log.waits() == 20 })
	b.groups.wait = true
	c := b.raw(t)
	testkit.Must(t, c.ask(usual(int16(kmsg.JoinGroup), 5)))
	testkit.Eventually(t, "the member waits", func() bool {
		b.groups.mu.Lock()
		defer b.groups.mu.Unlock()
		return len(b.groups.clients) == 1
	})
	for _, c := range append(conns, c) {
		testkit.Must(t, c.Close())
	}
	testkit.Eventually(t, "all connections end", func() bool { return b.ended() == 21 && b.log.waits() == 0 })
	testkit.Equal(t, "members", b.groups.ended, 1)
}

// Requests behind a fetch that waits are answered in order, after it. If there are more than the server takes, the
// fetch ends early, so that the end of the connection is noticed.
func TestRequestsBehindAFetch(t *testing.T) {
	b := start(t, open)
	c := b.raw(t)
	req := fetchOf(12, at(first, 0))
	req.MaxWaitMillis = 1<<31 - 1
	testkit.Must(t, c.ask(req))
	testkit.Eventually(t, "the fetch waits", func() bool { return b.log.waits() == 1 })
	for range 256 {
		testkit.Must(t, c.ask(usual(int16(kmsg.Heartbeat), 4)))
	}
	if b.log.waits() != 1 {
		t.Error("the fetch ended with room for the requests behind it")
	}
	for range 100 {
		testkit.Must(t, c.ask(usual(int16(kmsg.Heartbeat), 4)))
	}
	testkit.Equal(t, "fetch", text(t, testkit.Value(c.answer(req, 1))(t).(*kmsg.FetchResponse)), "events/0 code 0 [0,0)")
	for i := range int32(356) {
		testkit.Value(c.answer(usual(int16(kmsg.Heartbeat), 4), i+2))(t)
	}
}

// Frames without a request, or with one larger than allowed, end the connection before their bytes are read.
func TestFrames(t *testing.T) {
	for name, size := range map[string]uint32{"empty": 0, "too large": 1<<20 + 1, "negative": 1 << 31, "no header": 7} {
		b := start(t, open)
		c := b.raw(t)
		testkit.Value(c.Write(append(binary.BigEndian.AppendUint32(nil, size), make([]byte, 7)...)))(t)
		c.ends(t, name)
	}
	// A request that ends early is as good as none, wherever it ends.
	whole := kmsg.NewRequestFormatter(kmsg.FormatterClientID("raw")).AppendRequest(nil, fetchOf(13, at(first, 0)), 1)
	all := start(t, open)
	for n := 1; n < len(whole)-4; n++ {
		c := all.raw(t)
		testkit.Value(c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(n)), whole[4:4+n]...)))(t)
		c.ends(t, fmt.Sprint("a request of ", n, " bytes"))
	}
	c := start(t, nil).raw(t) // before the password, less is allowed
	greeting := kmsg.NewRequestFormatter().AppendRequest(nil, versions(0), 1)[4:]
	testkit.Value(c.Write(append(binary.BigEndian.AppendUint32(nil, 64<<10+1),
		append(greeting, make([]byte, 64<<10+1-len(greeting))...)...)))(t)
	c.ends(t, "too large without a password")
}
