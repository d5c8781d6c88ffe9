package app_test

import (
	"testing"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
)

// BenchmarkUnary measures small reads: what the server spends on a call besides its work. CPU
// and allocations are the server's alone.
func BenchmarkUnary(b *testing.B) {
	for _, c := range []struct {
		name  string
		http2 bool
		opts  []connect.ClientOption
	}{
		{"HTTP1", false, nil},
		{"HTTP2", true, nil},
		{"gRPC", true, []connect.ClientOption{connect.WithGRPC()}},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newBenchFixture(b)
			id := r.group(r.user("ann", false), r.user("ben", false).name)
			u := newUser("ann", token(b, r.dir, "ann"), r.p.addr, newTransport(b, c.http2), c.opts...)
			read := func(int) {
				if _, err := u.chats.GetChat(r.ctx, &chatv1.GetChatRequest{ChatId: id}); err != nil {
					b.Error(err)
				}
			}
			each(200, 16, read) // connections
			spent := func(name string) float64 { return scrape(b, r.p.addr, name) }
			cpu, allocs := spent("process_cpu_seconds_total"), spent("go_memstats_mallocs_total")
			b.ResetTimer()
			each(b.N, 16, read)
			b.StopTimer()
			n := float64(b.N)
			b.ReportMetric((spent("process_cpu_seconds_total")-cpu)*1e6/n, "server-us/call")
			b.ReportMetric((spent("go_memstats_mallocs_total")-allocs)/n, "server-allocs/call")
			b.ReportMetric(n/b.Elapsed().Seconds(), "calls/s")
		})
	}
}
