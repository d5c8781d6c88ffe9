package app_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// The benchmarks run the real binary in a process of its own; the clients of the
// benchmark share the machine with it.

type rig struct {
	b   testing.TB
	ctx context.Context
	p   *process
	key *auth.Key
	dir string
}

func newRig(b testing.TB) *rig {
	dir := b.TempDir()
	r := &rig{b: b, ctx: b.Context(), p: launch(b, dir, "127.0.0.1:0"), dir: dir}
	r.readKey()
	return r
}

func (r *rig) readKey() {
	r.b.Helper()
	var err error
	if r.key, err = auth.LoadKey(r.dir); err != nil {
		r.b.Fatal(err)
	}
}

func (r *rig) user(name string, h2 bool) *user {
	r.b.Helper()
	tok, err := r.key.Issue(name, time.Now(), time.Hour)
	if err != nil {
		r.b.Fatal(err)
	}
	u := newUser(name, tok, r.p.addr, newTransport(r.b, h2))
	if _, err := u.chats.ListChats(r.ctx, &chatv1.ListChatsRequest{}); err != nil { // writes the user's row
		r.b.Fatal(err)
	}
	return u
}

func (r *rig) group(u *user, members ...string) string {
	r.b.Helper()
	res, err := u.chats.CreateChat(r.ctx, &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: members})
	if err != nil {
		r.b.Fatal(err)
	}
	return res.GetChat().GetChat().GetChatId()
}

func (r *rig) send(u *user, id, text string) {
	if _, err := u.messages.SendMessage(r.ctx, &messagev1.SendMessageRequest{ChatId: id, Content: text}); err != nil {
		r.b.Error(err)
	}
}

// each calls f(i) for 0 ≤ i < n from a number of goroutines.
func each(n, workers int, f func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

func reportLatency(b *testing.B, times []time.Duration, name string) {
	slices.Sort(times)
	for _, q := range []int{50, 99} {
		b.ReportMetric(float64(times[(len(times)-1)*q/100].Microseconds())/1000, fmt.Sprintf("%sp%d-ms", name, q))
	}
}

// BenchmarkRPCSend measures durable sends through RPCs (Connect, protobuf, HTTP/1.1).
func BenchmarkRPCSend(b *testing.B) {
	for _, writers := range []int{1, 16, 128} {
		for _, chats := range []int{256, 1} {
			b.Run(fmt.Sprintf("writers=%d/chats=%d", writers, chats), func(b *testing.B) {
				r := newRig(b)
				u := r.user("ann", false)
				r.user("ben", false)
				ids := make([]string, chats)
				each(chats, 16, func(i int) { ids[i] = r.group(u, "ben") })
				text := strings.Repeat("x", 128)
				times := make([]time.Duration, b.N)
				b.ResetTimer()
				each(b.N, writers, func(i int) {
					start := time.Now()
					r.send(u, ids[i%chats], text)
					times[i] = time.Since(start)
				})
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sends/s")
				reportLatency(b, times, "")
			})
		}
	}
}

// crowd opens a stream for each member of a group and counts what arrives.
type crowd struct {
	ctx       context.Context
	delivered atomic.Int64
	moved     chan struct{}
	mu        sync.Mutex
	times     []time.Duration
	stop      context.CancelFunc
	wg        sync.WaitGroup
}

func (r *rig) crowd(id string, users []*user) *crowd {
	ctx, stop := context.WithCancel(r.ctx)
	c := &crowd{ctx: ctx, stop: stop, moved: make(chan struct{}, 1)}
	var open sync.WaitGroup
	for _, u := range users {
		open.Add(1)
		c.wg.Go(func() {
			st, err := u.delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
			if err != nil {
				r.b.Error(err)
				open.Done()
				return
			}
			defer st.Close()
			opened := false
			for st.Receive() {
				now := time.Now()
				n := int64(0)
				var took []time.Duration
				for _, f := range st.Msg().GetFrames() {
					if f.GetHeartbeat() != nil && !opened {
						opened = true
						open.Done()
					}
					if m := f.GetMessage(); m != nil {
						n++
						took = append(took, now.Sub(sentAt(r.b, m.GetContent())))
					}
				}
				if n > 0 {
					c.mu.Lock()
					c.times = append(c.times, took...)
					c.mu.Unlock()
					c.delivered.Add(n)
					select {
					case c.moved <- struct{}{}:
					default:
					}
				}
			}
		})
	}
	open.Wait()
	return c
}

// await returns when n messages have come, on all streams together, or the time is up.
func (c *crowd) await(n int64) {
	for c.delivered.Load() < n {
		select {
		case <-c.moved:
		case <-c.ctx.Done():
			return
		}
	}
}

// sentAt is when a text was stamped.
func sentAt(b testing.TB, text string) time.Time {
	at, _, _ := strings.Cut(text, " ")
	ns, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		b.Error(err)
	}
	return time.Unix(0, ns)
}

func stamped(pad string) string { return strconv.FormatInt(time.Now().UnixNano(), 10) + " " + pad }

func (r *rig) members(n int) []*user {
	users := make([]*user, n)
	each(n, 8, func(i int) { users[i] = r.user(fmt.Sprintf("m%03d", i), true) })
	return users
}

func names(users []*user) (list []string) {
	for _, u := range users {
		list = append(list, u.name)
	}
	return list
}

// BenchmarkDeliverPaced measures the way from before the send to the receipt on
// every member's stream, at a steady rate; each iteration is one send.
func BenchmarkDeliverPaced(b *testing.B) {
	for _, tt := range []struct{ members, rate int }{{10, 200}, {100, 50}} {
		b.Run(fmt.Sprintf("members=%d/rate=%d", tt.members, tt.rate), func(b *testing.B) {
			r := newRig(b)
			users := r.members(tt.members)
			id := r.group(users[0], names(users[1:])...)
			c := r.crowd(id, users)
			tick := time.NewTicker(time.Second / time.Duration(tt.rate))
			defer tick.Stop()
			b.ResetTimer()
			var sends sync.WaitGroup
			for i := range b.N {
				<-tick.C
				sends.Go(func() { r.send(users[i%len(users)], id, stamped("hello")) })
			}
			sends.Wait()
			c.await(int64(b.N * tt.members))
			b.StopTimer()
			c.stop()
			c.wg.Wait()
			reportLatency(b, c.times, "")
			syncs := fsyncs(b, r.dir, 200)
			reportLatency(b, syncs, "fsync-")
		})
	}
}

// fsyncs times append + fsync of 4 KB in a directory: the disk's own limit.
func fsyncs(b *testing.B, dir string, n int) []time.Duration {
	f, err := os.Create(filepath.Join(dir, "fsync"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	block, times := make([]byte, 4096), make([]time.Duration, n)
	for i := range times {
		start := time.Now()
		if _, err := f.Write(block); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		times[i] = time.Since(start)
	}
	return times
}

// BenchmarkDeliverClosed keeps 64 sends in flight into one group.
func BenchmarkDeliverClosed(b *testing.B) {
	for _, members := range []int{10, 100} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			r := newRig(b)
			users := r.members(members)
			id := r.group(users[0], names(users[1:])...)
			c := r.crowd(id, users)
			b.ResetTimer()
			each(b.N, 64, func(i int) { r.send(users[i%len(users)], id, stamped("hello")) })
			c.await(int64(b.N * members))
			b.StopTimer()
			c.stop()
			c.wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sends/s")
			b.ReportMetric(float64(b.N*members)/b.Elapsed().Seconds(), "delivered/s")
			reportLatency(b, c.times, "")
		})
	}
}

// BenchmarkIdleStreams measures the server's memory per idle stream, on h2
// connections of 100 streams.
func BenchmarkIdleStreams(b *testing.B) {
	const streams = 2000
	for range b.N {
		r := newRig(b)
		users := make([]*user, streams/10) // ten streams a user at most
		for i := range users {
			if i%10 == 0 {
				users[i] = r.user(fmt.Sprintf("u%03d", i), true)
				continue
			}
			tok, err := r.key.Issue(fmt.Sprintf("u%03d", i), time.Now(), time.Hour)
			if err != nil {
				b.Fatal(err)
			}
			users[i] = newUser(fmt.Sprintf("u%03d", i), tok, r.p.addr, newTransport(b, true))
		}
		before := resident(b, r.p.cmd.Process.Pid)
		var crowds []*crowd
		for range 10 {
			crowds = append(crowds, r.crowd("", users))
		}
		after := resident(b, r.p.cmd.Process.Pid)
		b.ReportMetric(float64(after-before)/1024/streams, "KB/stream")
		for _, c := range crowds {
			c.stop()
			c.wg.Wait()
		}
		r.p.kill()
	}
}

// resident reads a process's resident memory in bytes; Linux only.
func resident(b *testing.B, pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Skip("resident memory is read from /proc")
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return kb << 10
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
