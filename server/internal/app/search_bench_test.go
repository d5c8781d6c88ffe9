package app_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	analyticsv1 "github.com/parley-chat/parley/gen/parley/analytics/v1"
	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// BenchmarkSearchBatches is a server of its own process under 16 callers who record 100
// events at a time by gRPC, until they are on the disk; it publishes them meanwhile.
func BenchmarkSearchBatches(b *testing.B) {
	dir := b.TempDir()
	p := launch(b, dir, "127.0.0.1:0")
	req := &analyticsv1.RecordBatchRequest{}
	for i := range 100 {
		req.Events = append(req.Events, &analyticsv1.SearchEvent{ClientEventId: fmt.Sprint("c83f0d1e-6a1c-4f4e-9a53-", i),
			Event: &analyticsv1.SearchEvent_SearchImpression{SearchImpression: &searchv1.SearchImpression{
				SearchId: "4b7c1a52-9d27-44f2-a6c9-1f6a6a5e2f11", Query: "tea time", ResultIds: []string{
					"msg_01J0000000000000000000000A", "msg_01J0000000000000000000000B", "msg_01J0000000000000000000000C"}}}})
	}
	var callers sync.WaitGroup
	left := make(chan struct{}, b.N)
	for range b.N {
		left <- struct{}{}
	}
	close(left)
	clients := make([]func(context.Context, *analyticsv1.RecordBatchRequest) (*analyticsv1.RecordBatchResponse, error), 16)
	for i := range clients {
		clients[i] = newAnalytics(b, dir, p.addr, []string{"alice", "bob"}[i%2]).RecordBatch
	}
	b.ResetTimer()
	for _, record := range clients {
		callers.Go(func() {
			for range left {
				if _, err := record(context.Background(), req); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)*100/b.Elapsed().Seconds(), "events/s")
	since := time.Now()
	testkit.Eventually(b, "all events are published", func() bool {
		n, err := readMetric(b.Context(), p.addr, "parley_search_relay_published_total")
		return err == nil && n >= float64(b.N)*100
	})
	b.ReportMetric(time.Since(since).Seconds(), "s-until-published")
}
