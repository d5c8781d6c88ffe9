package upgrade_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog/upgrade"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/store/table"
)

// Figures of the logs that are measured.
const (
	benchPartitions = 16
	benchCycle      = 10       // records of a partition in a transaction
	benchSegment    = 16 << 20 // bytes
	benchChats      = 1_000
)

// oldPartition writes a partition as the old broker did.
type oldPartition struct {
	b    *testing.B
	dir  string
	file *os.File
	out  *bufio.Writer
	size int
	next int64
}

// append writes a batch of a transaction, or its marker.
func (p *oldPartition) append(attributes int16, list []kmsg.Record) {
	p.b.Helper()
	batch := kmsg.NewRecordBatch()
	batch.FirstOffset, batch.Magic, batch.Attributes = p.next, 2, attributes
	batch.LastOffsetDelta, batch.NumRecords = int32(len(list)-1), int32(len(list))
	batch.FirstTimestamp, batch.ProducerID = 1_700_000_000_000+p.next, 1
	batch.MaxTimestamp = batch.FirstTimestamp
	for i := range list {
		list[i].OffsetDelta = int32(i)
		list[i].Length = int32(len(list[i].AppendTo(nil)) - 1) // of a length of one byte
		batch.Records = list[i].AppendTo(batch.Records)
	}
	b := batch.AppendTo(nil)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	if p.file == nil || p.size > benchSegment {
		p.close()
		p.file = testkit.Value(os.Create(filepath.Join(p.dir, fmt.Sprint(p.next, ".dat"))))(p.b)
		p.out, p.size = bufio.NewWriterSize(p.file, 1<<16), 0
	}
	testkit.Value(p.out.Write(b))(p.b)
	p.size += len(b)
	p.next += int64(len(list))
}

func (p *oldPartition) close() {
	if p.file != nil {
		testkit.Must(p.b, p.out.Flush())
		testkit.Must(p.b, p.file.Close())
	}
}

// oldLog writes n events of chats in transactions, and their rows if there is a store.
func oldLog(b *testing.B, dir string, n int, s *embedded.Store) {
	b.Helper()
	parts := make([]*oldPartition, benchPartitions)
	for i := range parts {
		parts[i] = &oldPartition{b: b, dir: filepath.Join(dir, "partitions", fmt.Sprint(chatsTopic, "-", i))}
		testkit.Must(b, os.MkdirAll(parts[i].dir, 0o700))
	}
	var rows []store.Write
	for done := 0; done < n; {
		p := parts[done/benchCycle%benchPartitions]
		var list []kmsg.Record
		for range min(benchCycle, n-done) {
			e := sample(chatOf(done%benchChats), int64(done/benchChats*30+40)) // with prose of 50 bytes
			list = append(list, kmsg.Record{Key: []byte(e.ChatID), Value: testkit.Value(event.Frame(4, e.Payload))(b),
				Headers: []kmsg.Header{
					{Key: kafka.HeaderEventID, Value: []byte(e.EventID)}, {Key: kafka.HeaderEventType, Value: []byte(e.Type)},
					{Key: kafka.HeaderGeneration, Value: []byte(generationOf(e.Version))},
					{Key: kafka.HeaderPublished, Value: []byte("generation")},
				}})
			if s != nil {
				rows = append(rows, store.Write{Op: store.OpPut, Key: table.EventKey(e.ChatID, e.Version), Item: e.Item()})
			}
			done++
		}
		p.append(1<<4, list)
		p.append(1<<4|1<<5, []kmsg.Record{{Key: []byte{0, 0, 0, 1}, Value: make([]byte, 6)}})
		if len(rows) >= store.MaxPlanWrites || done == n && s != nil {
			writeAll(b, s, rows)
			rows = rows[:0]
		}
	}
	for _, p := range parts {
		p.close()
	}
}

func writeAll(b *testing.B, s *embedded.Store, rows []store.Write) {
	b.Helper()
	for part := range slices.Chunk(rows, store.MaxPlanWrites) {
		testkit.Must(b, s.Transact(b.Context(), store.Plan{Writes: part}))
	}
}

// BenchmarkMove moves a log: of events that have rows, and of those that have none. An operation is a record.
func BenchmarkMove(b *testing.B) {
	for _, references := range []bool{true, false} {
		b.Run(map[bool]string{true: "references", false: "copies"}[references], func(b *testing.B) {
			dir := b.TempDir()
			s := testkit.Value(embedded.Open(embedded.Options{Dir: dir}))(b)
			defer s.Close()
			withRows := s
			if !references {
				withRows = nil
			}
			log := filepath.Join(dir, "log")
			oldLog(b, log, b.N, withRows)
			cfg := upgrade.Config{Dir: log, Store: s, Log: commitlog.NewLocal(records.Of(s), time.Now), Groups: &rows{},
				Topics: []kafka.Topic{{Name: chatsTopic, Partitions: benchPartitions, Kind: kafka.Chats}},
				Behind: func([]upgrade.Event) error { return nil }}
			runtime.GC()
			highest := uint64(0)
			cfg.Progress = func(int64, int64) {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				highest = max(highest, m.HeapInuse)
			}
			before := cpu(b)
			b.ResetTimer()
			report := testkit.Value(upgrade.Run(b.Context(), cfg))(b)
			b.StopTimer()
			if want := int64(b.N); report.References+report.Copies != want || references && report.Copies > 0 {
				b.Fatalf("%+v", report)
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(report.Bytes)/float64(b.N), "old-bytes/op")
			b.ReportMetric(float64(highest)/(1<<20), "heap-MB")
		})
	}
}

// cpu is the processor time of the process.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	testkit.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
