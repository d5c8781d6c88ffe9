package eventlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/raw"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// benchLog opens a log with one topic in a directory.
func benchLog(b *testing.B) (*Log, *embedded.Store, string) {
	b.Helper()
	dir := b.TempDir()
	s := testkit.Value(embedded.Open(embedded.Options{Dir: dir}))(b)
	b.Cleanup(func() { testkit.Must(b, s.Close()) })
	l := testkit.Value(Open(b.Context(), Config{Store: s, Log: commitlog.NewLocal(records.Of(s), time.Now),
		Generation: "generation",
		Topics:     []kafka.Topic{{Name: "events", Partitions: benchPartitions, Kind: kafka.Chats}}}))(b)
	return l, s, dir
}

// publication is an event in the form of the relay: one row of the outbox.
func (s *sample) publication(chat bool) Publication {
	r := &kafka.Record{Topic: "events", Partition: s.partition, Key: s.rec.Key, Value: s.rec.Value}
	for _, h := range s.rec.Headers {
		r.Headers = append(r.Headers, kafka.Header(h))
	}
	p := Publication{Row: s.outbox().Key(), Records: []*kafka.Record{r}}
	if chat {
		p.Chat, p.Last = s.row.ChatID, s.row.Version
	}
	return p
}

// BenchmarkLogPublish measures a cycle of the relay as BenchmarkPublish does, with all that Log does
// around the commit: the choice between reference and copy, times and offsets, tail, waiters.
func BenchmarkLogPublish(b *testing.B) {
	list := samples(b, 20_000, 10_000)
	for _, n := range []int{1, 100, 1000} {
		for _, form := range []string{references, copies} {
			b.Run(fmt.Sprintf("events=%d/%s", n, form), func(b *testing.B) {
				l, s, dir := benchLog(b)
				put := raw.New(s, dir)
				var used time.Duration
				for i := range b.N {
					at := i * n % len(list)
					rows, cycle := make([]store.Row, n), make([]Publication, n)
					for k := range cycle {
						o := list[at+k].outbox()
						rows[k], cycle[k] = store.Row{Key: o.Key(), Item: o.Item()}, list[at+k].publication(form == references)
					}
					testkit.Must(b, put.Put(rows))
					before := cpu(b)
					testkit.Must(b, l.Publish(b.Context(), cycle))
					used += cpu(b) - before
				}
				b.ReportMetric(float64(used)/float64(b.N*n), "cpu-ns/event")
			})
		}
	}
}

// BenchmarkLogTail measures reads of records in memory, so many at a time.
func BenchmarkLogTail(b *testing.B) {
	list := samples(b, 10_000, 1000)
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint("records=", n), func(b *testing.B) {
			l, _, _ := benchLog(b)
			for from := 0; from < len(list); from += 100 {
				var cycle []Publication
				for k := range 100 {
					p := list[from+k].publication(true)
					p.Records[0].Partition = 0
					cycle = append(cycle, p)
				}
				testkit.Must(b, l.Publish(b.Context(), cycle))
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := cpu(b)
			at := kafka.Partition{Topic: "events"}
			for i := range b.N {
				if got, err := l.Read(b.Context(), at, int64(i*n%9900), n*600); err != nil || len(got) < n/2 {
					b.Fatal(len(got), err)
				}
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N*n), "cpu-ns/record")
		})
	}
}

// BenchmarkLogWait measures a publish to one partition while readers wait for others, and one waits
// for it.
func BenchmarkLogWait(b *testing.B) {
	for _, readers := range []int{0, 1000} {
		b.Run(fmt.Sprint("readers=", readers), func(b *testing.B) {
			l, _, _ := benchLog(b)
			var elsewhere []kafka.Position
			for id := range int32(benchPartitions - 1) {
				elsewhere = append(elsewhere, kafka.Position{Partition: kafka.Partition{Topic: "events", ID: id + 1}})
			}
			for range readers {
				go func() { _ = l.Wait(b.Context(), elsewhere) }()
			}
			part := testkit.Value(l.partition(elsewhere[len(elsewhere)-1].Partition))(b)
			testkit.Eventually(b, "the readers wait", func() bool {
				part.mu.Lock()
				defer part.mu.Unlock()
				return len(part.waiting) == readers
			})
			at := testkit.Value(l.partition(kafka.Partition{Topic: "events"}))(b)
			before := cpu(b)
			for i := range b.N {
				c := &chunk{of: at, base: int64(i), records: []*kafka.Record{{Offset: int64(i)}}}
				at.grow(c)
				l.tail.add(c)
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/publish")
		})
	}
}

// BenchmarkLogCatchUp measures a reader that reads the log from its start, as BenchmarkCatchUp does,
// through Read: a megabyte at a time, from the disk.
func BenchmarkLogCatchUp(b *testing.B) {
	for _, chats := range []int{10, 100_000} {
		for _, form := range []string{references, copies} {
			b.Run(fmt.Sprintf("chats=%d/%s", chats, form), func(b *testing.B) {
				x := build(b, samples(b, benchEvents, chats), form)
				defer x.store.Close()
				topics := []kafka.Topic{{Name: "messages.persisted", Partitions: benchPartitions, Kind: kafka.Chats}}
				l := testkit.Value(Open(b.Context(), Config{Store: x.store, Log: x.log, Topics: topics}))(b)
				b.ResetTimer()
				before := cpu(b)
				for range b.N {
					n := 0
					for id := range int32(benchPartitions) {
						for next := int64(0); ; {
							at := kafka.Partition{Topic: "messages.persisted", ID: id}
							list := testkit.Value(l.Read(b.Context(), at, next, 1<<20))(b)
							if len(list) == 0 {
								break
							}
							n += len(list)
							next = list[len(list)-1].Offset + 1
						}
					}
					if n != benchEvents {
						b.Fatalf("%d records", n)
					}
				}
				b.ReportMetric(float64(cpu(b)-before)/float64(b.N*benchEvents), "cpu-ns/event")
			})
		}
	}
}
