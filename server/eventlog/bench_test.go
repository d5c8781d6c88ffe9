package eventlog

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/raw"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/store/table"
)

const (
	benchPartitions = 96
	benchCycle      = 1000 // events that are published together
	benchEvents     = 200_000
)

// cpu is the processor time that the process has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	testkit.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sample is an event in all its forms.
type sample struct {
	row       table.Event
	ref       record.Reference
	rec       record.Record
	partition int32
}

// prose returns pieces of 200 bytes of the book that comes with Go.
func prose(b *testing.B) func(*rand.Rand) string {
	b.Helper()
	root := testkit.Value(exec.CommandContext(b.Context(), "go", "env", "GOROOT").Output())(b)
	book := testkit.Value(os.ReadFile(filepath.Join(strings.TrimSpace(string(root)),
		"src/testdata/Isaac.Newton-Opticks.txt")))(b)
	return func(rng *rand.Rand) string {
		at := rng.IntN(len(book) - 200)
		return string(bytes.ToValidUTF8(book[at:at+200], []byte("?")))
	}
}

// id is an id as the server makes them, of 26 characters.
func id(rng *rand.Rand, prefix string) string {
	const letters = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	b := append([]byte(prefix), "01J9"...)
	for range 22 {
		b = append(b, letters[rng.IntN(len(letters))])
	}
	return string(b)
}

// samples are messages of random chats.
func samples(b *testing.B, n, chats int) []sample {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, uint64(chats)))
	text := prose(b)
	names, versions := make([]string, chats), make([]int64, chats)
	for i := range names {
		names[i] = id(rng, "chat_")
	}
	list := make([]sample, n)
	at := time.Now()
	for i := range list {
		c := rng.IntN(chats)
		versions[c]++
		at = at.Add(time.Duration(rng.IntN(3_000)) * time.Microsecond)
		e := &eventv1.MessagePersisted{ChatId: names[c], Content: text(rng), Metadata: &eventv1.EventMetadata{
			EventId: id(rng, "evt_"), EventType: event.TypeMessagePersisted, EventVersion: 1, Version: versions[c],
			Generation: id(rng, "gen_"), PartitionKey: names[c], EventTime: timestamppb.New(at), ProducerId: "server-1",
			TraceId: strings.Repeat("0123456789abcdef", 2), ActorId: id(rng, "user_"), CorrelationId: id(rng, "req_"),
			CausationId: id(rng, "req_"), MembershipVersion: 1,
		}}
		s := &list[i]
		s.row = table.Event{ChatID: names[c], Version: versions[c], EventID: e.GetMetadata().GetEventId(),
			Type: event.TypeMessagePersisted, Payload: testkit.Value(event.Marshal(e))(b)}
		s.ref = record.Reference{Chat: names[c], Version: versions[c], Schema: 4, Time: at.UnixMilli()}
		s.rec = testkit.Value(Record(s.ref, "generation", &s.row))(b)
		s.partition = commitlog.PartitionOf(names[c], benchPartitions)
	}
	return list
}

func (s *sample) outbox() table.Outbox {
	return table.Outbox{Shard: int(s.partition) % 64, AggregateID: s.row.ChatID, FirstVersion: s.row.Version, Count: 1,
		CreatedAt: s.ref.Time}
}

// The forms of the log that are compared; none is a store without it.
const (
	none       = "none"
	references = "references"
	copies     = "copies"
)

func appendsOf(list []sample, form string, topic uint64) (out []commitlog.Append) {
	if form == none {
		return nil
	}
	of := make([]commitlog.Append, benchPartitions)
	for i := range list {
		a := &of[list[i].partition]
		if a.Partition = (commitlog.Partition{Topic: topic, Number: list[i].partition}); form == references {
			a.References.PublishedIn = "generation"
			a.References.List = append(a.References.List, list[i].ref)
		} else {
			a.Records = append(a.Records, list[i].rec)
		}
	}
	return slices.DeleteFunc(of, func(a commitlog.Append) bool { return a.Partition.Topic == 0 })
}

type bench struct {
	dir   string
	store *embedded.Store
	log   *commitlog.Local
	topic uint64
}

func openBench(b *testing.B, dir string) *bench {
	b.Helper()
	s := testkit.Value(embedded.Open(embedded.Options{Dir: dir}))(b)
	x := &bench{dir: dir, store: s, log: commitlog.NewLocal(records.Of(s), time.Now)}
	x.topic = testkit.Value(x.log.CreateEventTopic(b.Context(), commitlog.EventTopic{Name: "messages.persisted",
		Partitions: benchPartitions}))(b).Number
	return x
}

// deleteRows deletes rows as a relay does that publishes elsewhere.
func (x *bench) deleteRows(ctx context.Context, rows []store.Key) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	limit := make(chan struct{}, 8)
	for chunk := range slices.Chunk(rows, store.MaxBatchWrite) {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			writes := make([]store.Write, len(chunk))
			for i, k := range chunk {
				writes[i] = store.Write{Op: store.OpDelete, Key: k}
			}
			if err := x.store.BatchWrite(ctx, writes); err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

func (x *bench) publish(ctx context.Context, appends []commitlog.Append, rows []store.Key) error {
	if len(appends) == 0 {
		return x.deleteRows(ctx, rows)
	}
	p, err := x.log.Publish(ctx, appends, rows)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// BenchmarkPublish measures a cycle of the relay, from the records to the deletion of the rows,
// which are one for each event: appended as references, as copies, and the deletion alone.
func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{100, 1000} {
		list := samples(b, 20_000, 10_000)
		for _, form := range []string{none, references, copies} {
			b.Run(fmt.Sprintf("events=%d/%s", n, form), func(b *testing.B) {
				x := openBench(b, b.TempDir())
				defer x.store.Close()
				put := raw.New(x.store, x.dir)
				var used time.Duration
				began := cpu(b)
				for i := range b.N {
					at := i * n % len(list)
					part := list[at : at+n]
					rows, keys := make([]store.Row, n), make([]store.Key, n)
					for k := range part {
						o := part[k].outbox()
						rows[k], keys[k] = store.Row{Key: o.Key(), Item: o.Item()}, o.Key()
					}
					testkit.Must(b, put.Put(rows))
					before := cpu(b)
					testkit.Must(b, x.publish(b.Context(), appendsOf(part, form, x.topic), keys))
					used += cpu(b) - before
				}
				b.ReportMetric(float64(used)/float64(b.N*n), "cpu-ns/event")
				b.ReportMetric(float64(cpu(b)-began)/float64(b.N*n), "all-cpu-ns/event") // with the rows' making and compactions
			})
		}
	}
}

// build makes a store with the rows of all events and a log of them, merged as it is after a while.
func build(b *testing.B, list []sample, form string) *bench {
	b.Helper()
	x := openBench(b, b.TempDir())
	put := raw.New(x.store, x.dir)
	for part := range slices.Chunk(list, benchCycle) {
		rows := make([]store.Row, len(part))
		for i := range part {
			rows[i] = store.Row{Key: table.EventKey(part[i].row.ChatID, part[i].row.Version), Item: part[i].row.Item()}
		}
		testkit.Must(b, put.Put(rows))
		if form != none {
			testkit.Must(b, x.publish(b.Context(), appendsOf(part, form, x.topic), nil))
		}
	}
	testkit.Must(b, x.store.DB().Flush())
	testkit.Must(b, x.store.DB().Compact(b.Context(), []byte{0}, []byte{0xff}, true))
	testkit.Must(b, x.store.Close())
	return openBench(b, x.dir)
}

// BenchmarkCatchUp measures reading the log from its start: batches of copies, and those of
// references with the rows of their events.
func BenchmarkCatchUp(b *testing.B) {
	for _, chats := range []int{10, 100_000} {
		for _, form := range []string{references, copies} {
			b.Run(fmt.Sprintf("chats=%d/%s", chats, form), func(b *testing.B) {
				x := build(b, samples(b, benchEvents, chats), form)
				defer x.store.Close()
				b.ReportAllocs()
				b.ResetTimer()
				before := cpu(b)
				for range b.N {
					if n := x.readAll(b, form); n != benchEvents {
						b.Fatalf("%d records", n)
					}
				}
				b.ReportMetric(float64(cpu(b)-before)/float64(b.N*benchEvents), "cpu-ns/event")
			})
		}
	}
}

func (x *bench) readAll(b *testing.B, form string) (n int) {
	b.Helper()
	for number := range int32(benchPartitions) {
		at := commitlog.Partition{Topic: x.topic, Number: number}
		for next := int64(0); ; {
			size := 256 << 10 // about 400 events in either form
			if form == references {
				size = 16 << 10
			}
			batches := testkit.Value(x.log.Read(b.Context(), at, next, size))(b)
			if len(batches) == 0 {
				break
			}
			var refs record.References
			var list []record.Record
			for _, batch := range batches {
				if batch.Form == commitlog.References {
					refs.PublishedIn = batch.References().PublishedIn
					refs.List = append(refs.List, batch.References().List...)
					continue
				}
				for i := range batch.Count() {
					list = append(list, batch.Record(i))
				}
			}
			if len(refs.List) > 0 {
				list = testkit.Value(Records(b.Context(), x.store, refs))(b)
			}
			n += len(list)
			next = batches[len(batches)-1].End()
		}
	}
	return n
}

// BenchmarkTail measures reading from a tail in memory, in which the records are as the relay
// made them: nothing of it depends on the form of the log.
func BenchmarkTail(b *testing.B) {
	list := samples(b, 10_000, 1000)
	var mu sync.Mutex
	tail := make([]record.Record, len(list))
	for i := range list {
		tail[i] = list[i].rec
	}
	out := make([]record.Record, 0, 100)
	b.ResetTimer()
	before := cpu(b)
	for i := range b.N {
		at := i * 100 % len(tail)
		mu.Lock()
		out = append(out[:0], tail[at:at+100]...)
		mu.Unlock()
	}
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N*100), "cpu-ns/event")
}

// BenchmarkBytes reports what the log takes on the disk, in bytes an event, beside the rows.
func BenchmarkBytes(b *testing.B) {
	for _, chats := range []int{10, 100_000} {
		var without float64
		for _, form := range []string{none, references, copies} {
			b.Run(fmt.Sprintf("chats=%d/%s", chats, form), func(b *testing.B) {
				for range b.N {
					x := build(b, samples(b, benchEvents, chats), form)
					var size float64
					for _, f := range testkit.Value(raw.New(x.store, x.dir).Files())(b) {
						size += float64(f.Bytes) / benchEvents
					}
					testkit.Must(b, x.store.Close())
					if form == none {
						without = size
					}
					b.ReportMetric(size, "B/event")
					b.ReportMetric(size-without, "log-B/event")
				}
			})
		}
	}
}
