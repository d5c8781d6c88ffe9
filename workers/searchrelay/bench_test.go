package searchrelay_test

import (
	"context"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"time"

	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/search/record"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/searchrelay"
)

func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// From a store in memory to a broker in the process, 10,000 events at a time: the time of the
// relay and the broker, not of what records events.
func BenchmarkRelay(b *testing.B) {
	const events = 10_000
	br := kafkatest.InProcess(b)
	st := storetest.NewMemory(time.Now)
	streams := map[string]bool{}
	ids := 0
	r := record.New(record.Config{Store: st, Clock: time.Now, Retention: time.Hour,
		NewID:    func(prefix string) string { ids++; return fmt.Sprint(prefix, ids) },
		Recorded: func(stream string) { streams[stream] = true }})
	partitions := map[string]int{}
	for _, t := range kafka.Topics() {
		partitions[t.Name] = int(t.Partitions)
	}
	publisher := testkit.Value(kafka.NewPublisher(br.Addr, br.Name("bench")))(b)
	b.Cleanup(publisher.Close)
	source := &searchrelay.Source{Store: st, Targets: search.DefaultTargets(), Partitions: partitions, Clock: time.Now}
	re := testkit.Value(relay.New(relay.Config{Store: st, Load: source.Load, Clock: time.Now,
		Logger: slog.New(slog.DiscardHandler), Publish: relay.Flatten(publisher.Publish),
		Shards: []int{64, 65, 66, 67, 68, 69, 70, 71},
		Sweep:  time.Hour}))(b)
	testkit.Must(b, re.Cycle(b.Context()))
	list := make([]search.Event, 100)
	for i := range list {
		list[i] = search.Event{ClientID: fmt.Sprint("c83f0d1e-6a1c-4f4e-9a53-", i), Content: &searchv1.SearchImpression{
			SearchId: "4b7c1a52-9d27-44f2-a6c9-1f6a6a5e2f11", Query: "tea time", ResultIds: []string{
				"msg_01J0000000000000000000000A", "msg_01J0000000000000000000000B", "msg_01J0000000000000000000000C"}}}
	}
	var spent time.Duration
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		clear(streams)
		for range events / len(list) {
			_, err := r.Record(context.Background(), "user_1", list)
			testkit.Must(b, err)
		}
		b.StartTimer()
		before, published := cpu(), re.Stats().Published
		for stream := range streams {
			re.Wake(stream)
		}
		testkit.Must(b, re.Cycle(b.Context()))
		if n := re.Stats().Published - published; n != events {
			b.Fatalf("%d events were published", n)
		}
		spent += cpu() - before
	}
	n := float64(b.N) * events
	b.ReportMetric(n/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(spent.Nanoseconds())/n, "cpu-ns/event")
}
