//go:build !windows

package api_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/view"
)

// These benchmarks measure the server's side of streams alone: the clients are another
// process, nothing is stored, and the processor time is this process's own.

// feed is a hub behind a real listener, and one chat.
type feed struct {
	b       *testing.B
	hub     *delivery.Hub
	addr    string
	chat    string
	members []string
	version int64
}

func newFeed(b *testing.B, members int) *feed {
	b.Helper()
	f := &feed{b: b}
	st := storetest.NewMemory(time.Now)
	chats, err := chat.New(b.Context(), chat.Config{Store: st, Clock: time.Now, Generation: "gen", Producer: "bench"})
	f.must(err)
	reader := view.New(view.Config{Store: st, History: store.Line("gen"),
		TokenKey: make([]byte, view.KeySize), Clock: time.Now})
	f.hub, err = delivery.New(delivery.Config{History: store.Line("gen"), Process: "p", Source: reader, Clock: time.Now,
		NewID: chat.NewID})
	f.must(err)
	for i := range members {
		f.members = append(f.members, fmt.Sprintf("member%04d", i))
		f.must(chats.EnsureUser(b.Context(), f.members[i]))
	}
	if members > 0 && members <= 100 {
		c, err := chats.CreateGroup(b.Context(), chat.CreateGroup{Caller: f.members[0], Name: "g", Members: f.members[1:]})
		f.must(err)
		f.chat, f.version = c.ChatID, int64(members)
	}
	a, err := api.New(api.Config{Chat: chats, View: reader, Hub: f.hub, Store: st, Logger: slog.New(slog.DiscardHandler),
		Observe: func(string, string, time.Duration) {}})
	f.must(err)
	mux := http.NewServeMux()
	for path, h := range a.Handlers() {
		mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p := auth.Principal{UserID: r.Header.Get("X-User"), SessionID: "ses", ExpiresAt: time.Now().Add(time.Hour)}
			h.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), p)))
		}))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	f.must(err)
	f.addr = l.Addr().String()
	srv := edge.NewServer(mux, slog.DiscardHandler)
	g := edge.New(l, edge.Limits{Connections: 1 << 16}, slog.New(slog.DiscardHandler))
	g.Install(srv.Server)
	ctx, cancel := context.WithCancel(context.Background())
	var ran sync.WaitGroup
	ran.Go(func() { _ = f.hub.Run(ctx, func() {}) })
	ran.Go(func() { _ = srv.Serve(g) })
	b.Cleanup(func() {
		cancel()
		_ = srv.Close()
		ran.Wait()
	})
	return f
}

func (f *feed) must(err error) {
	f.b.Helper()
	if err != nil {
		f.b.Fatal(err)
	}
}

var pad = strings.Repeat("x", 200)

// deliver sends n messages in one call, as the commit of a shared plan does.
func (f *feed) deliver(n int) {
	var d delivery.Delivery
	for range n {
		f.version++
		d.Events = append(d.Events, &eventv1.MessagePersisted{
			Metadata: &eventv1.EventMetadata{Generation: "gen", Version: f.version,
				MembershipVersion: int64(len(f.members))},
			ChatId: f.chat, MessageId: "msg_01HZY7M3N4P5Q6R7S8T9V0WXYZ", Sequence: f.version, SenderId: f.members[0],
			Content: pad, ClientMessageId: "01890a5d-ac96-774b-bcce-b302099a8057", CreatedAt: timestamppb.Now(),
		})
	}
	d.Generation, d.ChatID = "gen", f.chat
	d.Version, d.MembershipVersion = f.version, int64(len(f.members))
	f.hub.Deliver(d)
}

// Settings of the process that reads.
const (
	readerAddr    = "TEST_STREAM_READER"
	readerStreams = "TEST_STREAM_READER_STREAMS" // of each connection
	readerConns   = "TEST_STREAM_READER_CONNS"
	readerProto   = "TEST_STREAM_READER_PROTO"
)

// readers is the process that reads: it says how many messages have come, on all streams
// together.
type readers struct {
	got   atomic.Int64
	moved chan struct{}
	stop  func()
}

// open starts the process that reads, and waits until all its streams are open.
func (f *feed) open(protocol string, conns, each int) *readers {
	f.b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestReaders$")
	cmd.Env = append(os.Environ(), readerAddr+"="+f.addr, readerStreams+"="+strconv.Itoa(each),
		readerConns+"="+strconv.Itoa(conns), readerProto+"="+protocol)
	in, err := cmd.StdinPipe() // it ends with this
	f.must(err)
	out, err := cmd.StdoutPipe()
	f.must(err)
	cmd.Stderr = os.Stderr
	f.must(cmd.Start())
	r := &readers{moved: make(chan struct{}, 1), stop: sync.OnceFunc(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})}
	f.b.Cleanup(r.stop)
	opened := make(chan struct{})
	go func() {
		var b [8]byte
		for first := true; ; first = false {
			if _, err := io.ReadFull(out, b[:]); err != nil {
				return
			}
			if first {
				close(opened)
				continue
			}
			r.got.Store(int64(binary.BigEndian.Uint64(b[:])))
			select {
			case r.moved <- struct{}{}:
			default:
			}
		}
	}()
	<-opened
	return r
}

// await returns when n messages have come.
func (r *readers) await(n int64) {
	for r.got.Load() < n {
		<-r.moved
	}
}

// TestReaders is the process that reads.
func TestReaders(t *testing.T) {
	addr := os.Getenv(readerAddr)
	if addr == "" {
		t.Skip("is run by benchmarks, as a process of their own")
	}
	conns, _ := strconv.Atoi(os.Getenv(readerConns))
	each, _ := strconv.Atoi(os.Getenv(readerStreams))
	ctx, cancel := context.WithCancel(context.Background())
	var got atomic.Int64
	var open, reading sync.WaitGroup
	changed := make(chan struct{}, 1)
	slots := make(chan struct{}, 32)
	for i := range conns {
		tr := &http.Transport{Protocols: new(http.Protocols), ReadBufferSize: 4 << 10}
		tr.Protocols.SetHTTP1(os.Getenv(readerProto) == "http1")
		tr.Protocols.SetUnencryptedHTTP2(os.Getenv(readerProto) == "h2c")
		for j := range each {
			open.Add(1)
			slots <- struct{}{}
			reading.Go(func() {
				opened := sync.OnceFunc(func() { open.Done(); <-slots })
				readStream(ctx, tr, addr, fmt.Sprintf("member%04d", i*each+j), opened, func(n int64) {
					got.Add(n)
					select {
					case changed <- struct{}{}:
					default:
					}
				})
			})
		}
	}
	open.Wait()
	say := func(n int64) { _, _ = os.Stdout.Write(binary.BigEndian.AppendUint64(nil, uint64(n))) }
	say(0)
	go func() {
		for range changed {
			say(got.Load())
			time.Sleep(200 * time.Microsecond)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	reading.Wait()
	os.Exit(0) // without a word on standard output
}

func readStream(ctx context.Context, tr *http.Transport, addr, user string, opened func(), took func(int64)) {
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://"+addr+deliveryv1connect.DeliveryServiceSubscribeProcedure, strings.NewReader("\x00\x00\x00\x00\x00"))
	req.Header.Set("Content-Type", "application/connect+proto")
	req.Header.Set("X-User", user)
	res, err := tr.RoundTrip(req)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer res.Body.Close()
	body := bufio.NewReader(res.Body)
	var msg deliveryv1.SubscribeResponse
	for {
		var head [5]byte
		if _, err := io.ReadFull(body, head[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(body, b); err != nil || head[0] != 0 {
			return
		}
		if err := proto.Unmarshal(b, &msg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		n := int64(0)
		for _, f := range msg.GetFrames() {
			if f.GetMessage() != nil {
				n++
			}
			if f.GetHeartbeat() != nil {
				opened()
			}
		}
		if n > 0 {
			took(n)
		}
	}
}

// usage is what this process has used.
type usage struct {
	cpu     time.Duration
	mallocs uint64
	bytes   uint64
}

func used(b *testing.B) usage {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), m.Mallocs, m.TotalAlloc}
}

func report(b *testing.B, from usage, deliveries int) {
	to, n := used(b), float64(deliveries)
	b.ReportMetric(float64((to.cpu-from.cpu).Nanoseconds())/1e3/n, "cpu-µs/delivery")
	b.ReportMetric(float64(to.mallocs-from.mallocs)/n, "allocs/delivery")
	b.ReportMetric(float64(to.bytes-from.bytes)/n, "bytes/delivery")
}

// BenchmarkStreamsLone delivers one message at a time to the members of a chat, each with
// a connection: the next when all have it.
func BenchmarkStreamsLone(b *testing.B) {
	for _, protocol := range []string{"h2c", "http1"} {
		for _, members := range []int{10, 100} {
			b.Run(fmt.Sprintf("%s/members=%d", protocol, members), func(b *testing.B) {
				f := newFeed(b, members)
				r := f.open(protocol, members, 1)
				b.ResetTimer()
				from := used(b)
				for i := range b.N {
					f.deliver(1)
					r.await(int64((i + 1) * members))
				}
				report(b, from, b.N*members)
				r.stop()
			})
		}
	}
}

// BenchmarkStreamsBusy keeps 64 messages on their way to the members of a chat, each with a
// connection, in commits of eight.
func BenchmarkStreamsBusy(b *testing.B) {
	const inFlight, commit = 64, 8
	for _, protocol := range []string{"h2c", "http1"} {
		for _, members := range []int{10, 100} {
			b.Run(fmt.Sprintf("%s/members=%d", protocol, members), func(b *testing.B) {
				f := newFeed(b, members)
				r := f.open(protocol, members, 1)
				b.ResetTimer()
				from := used(b)
				sent := 0
				for sent < b.N {
					r.await(int64((sent - inFlight + commit) * members))
					f.deliver(commit)
					sent += commit
				}
				r.await(int64(sent * members))
				report(b, from, sent*members)
				b.ReportMetric(float64(sent*members)/b.Elapsed().Seconds(), "delivered/s")
				r.stop()
			})
		}
	}
}

// BenchmarkStreamsIdle opens streams, each with a connection or a hundred on one, and says
// what one holds: of the heap, of stacks, and of memory that the system gave; and how many
// processors all of them take while nothing comes but heartbeats.
func BenchmarkStreamsIdle(b *testing.B) {
	for _, tt := range []struct {
		protocol      string
		streams, each int
		watch         time.Duration
	}{{"h2c", 1000, 1, time.Second}, {"h2c", 1000, 100, time.Second}, {"http1", 1000, 1, time.Second},
		{"h2c", 20_000, 100, time.Minute}} {
		b.Run(fmt.Sprintf("%s/streams=%d/each=%d", tt.protocol, tt.streams, tt.each), func(b *testing.B) {
			for range b.N {
				f := newFeed(b, tt.streams)
				before := memory()
				r := f.open(tt.protocol, tt.streams/tt.each, tt.each)
				time.Sleep(300 * time.Millisecond)
				after := memory()
				for i, name := range []string{"heap", "stack", "system"} {
					b.ReportMetric(float64(after[i]-before[i])/1024/float64(tt.streams), name+"-KB/stream")
				}
				from := used(b)
				time.Sleep(tt.watch)
				b.ReportMetric((used(b).cpu-from.cpu).Seconds()/tt.watch.Seconds(), "processors")
				r.stop()
			}
		})
	}
}

// memory is what the process holds of the heap, of stacks, and of the system.
func memory() [3]int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return [3]int64{int64(m.HeapAlloc), int64(m.StackInuse), int64(m.Sys - m.HeapReleased)}
}
