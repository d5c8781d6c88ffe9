package chat_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
)

func benchService(b *testing.B, users []string, change ...func(*chat.Config)) *chat.Service {
	st, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := st.Close(); err != nil {
			b.Error(err)
		}
	})
	return benchServiceOn(b, st, users, change...)
}

func benchServiceOn(b *testing.B, st store.Store, users []string, change ...func(*chat.Config)) *chat.Service {
	cfg := chat.Config{Store: st, Clock: time.Now, Generation: "g", Producer: "bench"}
	for _, f := range change {
		f(&cfg)
	}
	svc, err := chat.New(context.Background(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < len(users); i += 16 {
				if err := svc.EnsureUser(context.Background(), users[i]); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return svc
}

// BenchmarkMembership measures durable changes of memberships per second: each
// client adds a user of its own and removes it again, over many chats and in one.
func BenchmarkMembership(b *testing.B) {
	for _, clients := range []int{1, 16, 64} {
		for _, chats := range []int{64, 1} {
			b.Run(fmt.Sprintf("clients=%d/chats=%d", clients, chats), func(b *testing.B) {
				users := numbered("u", clients)
				svc := benchService(b, append(users, "owner", "bob"))
				ids := make([]string, chats)
				for i := range ids {
					c, err := svc.CreateGroup(b.Context(), chat.CreateGroup{Caller: "owner", Name: "g", Members: []string{"bob"}})
					if err != nil {
						b.Fatal(err)
					}
					ids[i] = c.ChatID
				}
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				b.ReportAllocs()
				b.ResetTimer()
				for i, user := range users {
					wg.Go(func() {
						c := chat.MemberChange{Caller: "owner", ChatID: ids[i%chats], UserID: user, Role: table.Member}
						for n := 0; left.Add(-1) >= 0; n++ {
							op := chat.OpAdd
							if n%2 == 1 {
								op = chat.OpRemove
							}
							if _, err := svc.Change(b.Context(), op, c); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "changes/s")
			})
		}
	}
}

// BenchmarkCreateGroup measures the creation of complete groups of 100: the group,
// and four chunks of members. L-050: the times of the phases are those that the
// histogram tells, not taken by the benchmark.
func BenchmarkCreateGroup(b *testing.B) {
	for _, engine := range []string{"embedded", "dynamodb"} {
		for _, clients := range []int{1, 8} {
			b.Run(fmt.Sprintf("engine=%s/members=100/clients=%d", engine, clients), func(b *testing.B) {
				m := telemetry.NewMetrics()
				l := m.Chats()
				metered := func(c *chat.Config) {
					c.Meter.CreationTook = func(_ table.Type, phase int,
						took time.Duration) {
						l.CreationTook("group", strconv.Itoa(phase), took)
					}
				}
				users := numbered("u", 99)
				everybody := append(slices.Clone(users), "owner")
				var svc *chat.Service
				if engine == "dynamodb" {
					svc = benchServiceOn(b, dynamotest.Fresh(b), everybody, metered)
				} else {
					svc = benchService(b, everybody, metered)
				}
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				b.ReportAllocs()
				b.ResetTimer()
				for range clients {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							c, err := svc.CreateGroup(b.Context(), chat.CreateGroup{Caller: "owner", Name: "g", Members: users})
							if err != nil || c.Incomplete != nil {
								b.Error(err, c.Incomplete)
								return
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "groups/s")
				for _, phase := range []string{telemetry.PhaseChat, telemetry.PhaseMembers} {
					b.ReportMetric(median(b, m, "group", phase)*1000, "phase"+phase+"-p50-ms")
				}
			})
		}
	}
}

// median is what Prometheus makes of the histogram of creations as it is served: the place
// of the middle in its bucket, in seconds.
func median(b *testing.B, m *telemetry.Metrics, kind, phase string) float64 {
	served := httptest.NewRecorder()
	m.Handler().ServeHTTP(served, httptest.NewRequest("GET", "/metrics", nil))
	bucket := regexp.MustCompile(fmt.Sprintf(`(?m)^%s_bucket{chat_type=%q,phase=%q,le="([0-9.]+)"} ([0-9]+)$`,
		telemetry.ChatCreationTime, kind, phase))
	total := regexp.MustCompile(fmt.Sprintf(`(?m)^%s_count{chat_type=%q,phase=%q} ([0-9]+)$`, telemetry.ChatCreationTime,
		kind, phase))
	number := func(s string) float64 {
		n, err := strconv.ParseFloat(s, 64)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	count := total.FindStringSubmatch(served.Body.String())
	if count == nil {
		b.Fatalf("no times of phase %s", phase)
	}
	middle, below, before := number(count[1])/2, 0.0, 0.0
	for _, one := range bucket.FindAllStringSubmatch(served.Body.String(), -1) {
		bound, n := number(one[1]), number(one[2])
		if n >= middle {
			return below + (bound-below)*(middle-before)/(n-before)
		}
		below, before = bound, n
	}
	b.Fatalf("phase %s takes longer than the histogram can tell", phase)
	return 0
}
