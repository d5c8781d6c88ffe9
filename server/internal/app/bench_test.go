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

type benchFixture struct {
	b   testing.TB
	ctx context.Context
	p   *process
	key *auth.Key
	dir string
}

func newBenchFixture(b testing.TB) *benchFixture {
	dir := b.TempDir()
	r := &benchFixture{b: b, ctx: b.Context(), p: launch(b, dir, "127.0.0.1:0"), dir: dir}
	r.readKey()
	return r
}

func (r *benchFixture) readKey() {
	r.b.Helper()
	var err error
	if r.key, err = auth.LoadKey(r.dir); err != nil {
		r.b.Fatal(err)
	}
}

func (r *benchFixture) user(name string, h2 bool) *user {
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

func (r *benchFixture) group(u *user, members ...string) string {
	r.b.Helper()
	res, err := u.chats.CreateChat(r.ctx,
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: members})
	if err != nil {
		r.b.Fatal(err)
	}
	return res.GetOverview().GetChat().GetChatId()
}

func (r *benchFixture) send(u *user, id, text string) {
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

func (r *benchFixture) crowd(id string, users []*user) *crowd {
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

func (r *benchFixture) members(n int) []*user {
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
			r := newBenchFixture(b)
			users := r.members(members)
			id := r.group(users[0], names(users[1:])...)
			c := r.crowd(id, users)
			used := processorTime(b, r.p.cmd.Process.Pid)
			b.ResetTimer()
			each(b.N, 64, func(i int) { r.send(users[i%len(users)], id, stamped("hello")) })
			c.await(int64(b.N * members))
			b.StopTimer()
			used = processorTime(b, r.p.cmd.Process.Pid) - used
			b.ReportMetric(float64(used.Microseconds())/float64(b.N*members), "cpu-µs/delivery")
			c.stop()
			c.wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sends/s")
			b.ReportMetric(float64(b.N*members)/b.Elapsed().Seconds(), "delivered/s")
			reportLatency(b, c.times, "")
		})
	}
}
