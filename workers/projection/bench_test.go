package projection_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/projection/chatactivity"
)

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	testkit.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// history makes an embedded store on the disk, with events of chats and their heads.
func history(b *testing.B, chats, messages int) (*embedded.Store, []string) {
	b.Helper()
	st, err := embedded.Open(embedded.Options{Dir: b.TempDir(), Clock: time.Now})
	testkit.Must(b, err)
	b.Cleanup(func() { _ = st.Close() })
	return st, more(b, st, chats, 0, messages)
}

// more writes the events of chats from one number to another, and their heads.
func more(b *testing.B, st store.Store, chats, from, to int) (ids []string) {
	b.Helper()
	now := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	var writes []store.Write
	flush := func(at int) {
		for len(writes) > 0 && (len(writes) >= at) {
			n := min(len(writes), store.MaxBatchWrite)
			testkit.Must(b, st.BatchWrite(b.Context(), writes[:n]))
			writes = writes[n:]
		}
	}
	for c := range chats {
		id := fmt.Sprintf("chat_%06d", c)
		ids = append(ids, id)
		for n := from; n < to; n++ {
			at := now.Add(time.Duration(n) * time.Hour / 4)
			user := fmt.Sprint("user_", (n*n+c)%20)
			payload, err := event.Marshal(&eventv1.MessagePersisted{
				Metadata: event.Metadata{Type: event.TypeMessagePersisted, ID: fmt.Sprintf("evt_%d_%d", c, n), ChatID: id, At: at,
					Origin: event.Origin{Generation: "g", Producer: "p"},
					Cause:  event.Cause{Actor: user}.Complete("evt_1"), Version: int64(n + 1), MembershipVersion: 1}.Proto(),
				MessageId: fmt.Sprintf("msg_%d_%d", c, n), ChatId: id, Sequence: int64(n + 1), SenderId: user,
				Content:         "What a fine day it is for a cup of tea, and for a walk after it.",
				ClientMessageId: "c1", CreatedAt: timestamppb.New(at),
			})
			testkit.Must(b, err)
			e := table.Event{ChatID: id, Version: int64(n + 1), EventID: fmt.Sprintf("evt_%d_%d", c, n),
				Type: event.TypeMessagePersisted, Payload: payload}
			writes = append(writes, store.Write{Op: store.OpPut, Key: table.EventKey(id, e.Version), Item: e.Item()})
			flush(store.MaxBatchWrite)
		}
		head := table.Head{Version: int64(to), Sequence: int64(to), MembershipVersion: 1, ChangedAt: 1, LastAt: 1}
		writes = append(writes, store.Write{Op: store.OpPut, Key: table.HeadKey(id), Item: head.Item()})
	}
	flush(1)
	return ids
}

func benchSet(b *testing.B, st store.Store, name string) *projection.Set {
	b.Helper()
	d := chatactivity.Definition()
	d.Name = name
	s, err := projection.New(projection.Config{
		Definitions: []projection.Definition{d}, Store: st, Decode: unasked, Process: "p1",
		History: store.Line("g"), Exclusive: true, Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Rest: -1,
	})
	testkit.Must(b, err)
	return s
}

func report(b *testing.B, events int, used time.Duration) {
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(used.Microseconds())/float64(events), "cpu-µs/event")
}

// A rebuild of 100,000 events of 2,000 chats, on the embedded store.
func BenchmarkRebuild(b *testing.B) {
	st, _ := history(b, 2_000, 50)
	s := benchSet(b, st, chatactivity.Name)
	operate := projection.Operate{Definitions: []projection.Definition{chatactivity.Definition()}, Store: st,
		Generation: "g", Clock: time.Now}
	testkit.Must(b, s.Prepare(b.Context()))
	testkit.Must(b, s.RebuildOnce(b.Context()))
	before, events := cpu(b), 0
	for b.Loop() {
		_, err := operate.Do(b.Context(), chatactivity.Name, projection.Change{Action: projection.Start}, "b", true)
		testkit.Must(b, err)
		testkit.Must(b, s.RebuildOnce(b.Context()))
		events += 100_000
	}
	report(b, events, cpu(b)-before)
	if got := s.Stats(chatactivity.Name).Rebuilt; got != int64(events)+100_000 {
		b.Fatal(got)
	}
}

// A backlog of 100,000 events of 2,000 chats, from a broker in the process into the embedded
// store, through the engine: some records of each chat at a time, as they come.
func BenchmarkProjector(b *testing.B) {
	const chats, messages = 2_000, 50
	broker := kafkatest.InProcess(b)
	client, err := kafka.NewTransactional(broker.Addr, broker.Name("bench"))
	testkit.Must(b, err)
	defer client.Close()
	st, ids := history(b, chats, messages)
	for n := range messages {
		for from := 0; from < chats; from += 500 {
			var records []*kafka.Record
			for _, id := range ids[from : from+500] {
				records = append(records, &kafka.Record{Topic: kafka.MessagesPersisted,
					Partition: int32(event.Partition(id, int(kafka.Partitions(kafka.MessagesPersisted)))), Key: []byte(id),
					Value: fmt.Appendf(nil, "%0300d", n)})
			}
			testkit.Must(b, kafka.Transact(b.Context(), client, records))
		}
	}
	empty, _ := history(b, 0, 0)
	used, events := time.Duration(0), 0
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		name := fmt.Sprint("run", n) // a projection that has nothing yet
		s := benchSet(b, st, name)
		testkit.Must(b, s.Prepare(b.Context()))
		ctx, cancel := context.WithCancel(b.Context())
		e, err := consume.New(consume.Config{
			Addr: broker.Addr, Group: broker.Name(fmt.Sprint("g", n)), Consumer: "b", Topics: []string{kafka.MessagesPersisted},
			Store: empty, Clock: time.Now, Logger: slog.New(slog.DiscardHandler),
			WriteDeadLetter: func(_ context.Context, d consume.DeadLetter) error {
				return fmt.Errorf("dead letter: %s", d.Reason)
			},
			Aggregate: func(ctx context.Context, records []*kafka.Record) (consume.Effect, error) {
				effect, err := s.Aggregate(ctx, records)
				if s.Stats(name).Folded == chats*messages {
					cancel()
				}
				return effect, err
			},
		})
		testkit.Must(b, err)
		before := cpu(b)
		b.StartTimer()
		_ = e.Run(ctx, func() {})
		used += cpu(b) - before
		events += chats * messages
		cancel()
	}
	report(b, events, used)
}

// Events as they come: of each of 2,000 chats 1, 10 or 50 more, in one call of the handler for
// each chat, 16 at a time, on the embedded store. The rest of the engine is left out.
func BenchmarkLive(b *testing.B) {
	const chats = 2_000
	for _, each := range []int{1, 10, 50} {
		b.Run(fmt.Sprint("events=", each), func(b *testing.B) {
			st, _ := history(b, 0, 0)
			s := benchSet(b, st, chatactivity.Name)
			testkit.Must(b, s.Prepare(b.Context()))
			used, events := time.Duration(0), 0
			for b.Loop() {
				b.StopTimer()
				ids := more(b, st, chats, events/chats, events/chats+each)
				before := cpu(b)
				b.StartTimer()
				var next atomic.Int64
				var all sync.WaitGroup
				for range 16 {
					all.Go(func() {
						for i := next.Add(1) - 1; i < chats; i = next.Add(1) - 1 {
							if _, err := s.Handle(b.Context(), []*kafka.Record{
								{Topic: kafka.MessagesPersisted, Key: []byte(ids[i])}}); err != nil {
								b.Error(err)
							}
						}
					})
				}
				all.Wait()
				used += cpu(b) - before
				events += chats * each
			}
			report(b, events, used)
		})
	}
}
