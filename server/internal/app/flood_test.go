package app_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
)

// attacker is an HTTP/2 client that keeps to no rule but the form of frames. It has no
// token.
type attacker struct {
	conn   net.Conn
	out    *bufio.Writer
	framer *http2.Framer
	stream uint32
	head   []byte
}

func newAttacker(t testing.TB, addr string) *attacker {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	a := &attacker{conn: c, out: bufio.NewWriterSize(c, 16<<10), stream: 1}
	a.framer = http2.NewFramer(a.out, nil)
	a.framer.AllowIllegalWrites = true
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", addr},
		{":path", "/parley.chat.v1.ChatService/ListChats"}} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // to memory
	}
	a.head = head.Bytes()
	_, _ = a.out.WriteString(http2.ClientPreface)
	_ = a.framer.WriteSettings()
	// It reads all answers, so that none of them wait in the server.
	go func() { _, _ = io.Copy(io.Discard, c) }()
	return a
}

// open opens a stream whose request stays without an end.
func (a *attacker) open(endHeaders bool) error {
	err := a.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: a.stream, BlockFragment: a.head,
		EndHeaders: endHeaders})
	a.stream += 2
	return err
}

// floods are frames that an attacker sends as fast as it can, after a beginning.
var floods = []struct {
	name  string
	begin func(*attacker) error
	again func(*attacker) error
}{
	{"PING", nil, func(a *attacker) error { return a.framer.WritePing(false, [8]byte{}) }},
	{"PING answers", nil, func(a *attacker) error { return a.framer.WritePing(true, [8]byte{}) }},
	{"SETTINGS", nil, func(a *attacker) error {
		return a.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535})
	}},
	{"PRIORITY", nil, func(a *attacker) error { return a.framer.WritePriority(5, http2.PriorityParam{StreamDep: 3}) }},
	{"WINDOW_UPDATE", nil, func(a *attacker) error { return a.framer.WriteWindowUpdate(0, 1) }},
	{"empty DATA", func(a *attacker) error { return a.open(true) },
		func(a *attacker) error { return a.framer.WriteData(1, false, nil) }},
	{"padding", func(a *attacker) error { return a.open(true) },
		func(a *attacker) error { return a.framer.WriteDataPadded(1, false, nil, make([]byte, 8)) }},
	{"requests reset at once", nil, func(a *attacker) error {
		if err := a.open(true); err != nil {
			return err
		}
		return a.framer.WriteRSTStream(a.stream-2, http2.ErrCodeCancel)
	}},
	{"CONTINUATION", func(a *attacker) error { return a.open(false) },
		func(a *attacker) error { return a.framer.WriteContinuation(1, false, nil) }},
	{"unknown frames", nil, func(a *attacker) error { return a.framer.WriteRawFrame(0xfa, 0, 0, nil) }},
}

// attack floods until the connection is cut or ctx ends, and returns how many frames
// were written.
func (a *attacker) attack(ctx context.Context, begin, again func(*attacker) error) (frames int, cut bool) {
	if begin != nil && begin(a) != nil {
		return 0, true
	}
	for ; ctx.Err() == nil; frames++ {
		if err := again(a); err != nil {
			return frames, true
		}
	}
	return frames, false
}

// Whoever floods with frames of any kind is cut off, while everybody else is served, on
// connections of the same kind (S-28).
func TestSec_S_28_FloodsAreCut(t *testing.T) {
	r := newBenchFixture(t)
	bob := r.user("bob", true)
	for _, flood := range floods {
		t.Run(flood.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			a := newAttacker(t, r.p.addr)
			done := make(chan struct{})
			var frames int
			var cut bool
			go func() {
				defer close(done)
				frames, cut = a.attack(ctx, flood.begin, flood.again)
			}()
			for served, over := 0, false; !over || served < 10; served++ {
				if _, err := bob.chats.ListChats(t.Context(), &chatv1.ListChatsRequest{}); err != nil {
					t.Fatalf("a neighbour is not served: %v", err)
				}
				select {
				case <-done:
					over = true
				default:
				}
			}
			// What was written is more than what was read: a part is on the way.
			if !cut || frames > 500_000 {
				t.Errorf("cut off: %v, after %d frames", cut, frames)
			}
		})
	}
	if n := strings.Count(r.p.log.tail(1<<20), "connection cut"); n < 1 || n > 20 {
		t.Errorf("the log reports it %d times", n)
	}
	if got := scrape(t, r.p.addr, "parley_connections_cut_total"); got != 10 {
		t.Errorf("%v connections were cut", got)
	}
}

// BenchmarkFloods measures a member's calls on the real program, alone and beside one
// connection after another that floods; client and attacker share the machine with it.
func BenchmarkFloods(b *testing.B) {
	run := func(b *testing.B, attack func(ctx context.Context, addr string)) {
		r := newBenchFixture(b)
		bob := r.user("bob", true)
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			attack(ctx, r.p.addr)
		}()
		times := make([]time.Duration, b.N)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		b.ResetTimer()
		for i := range times {
			<-tick.C
			began := time.Now()
			if _, err := bob.chats.ListChats(ctx, &chatv1.ListChatsRequest{}); err != nil {
				b.Fatal(err)
			}
			times[i] = time.Since(began)
		}
		b.StopTimer()
		cancel()
		<-done
		reportLatency(b, times, "")
	}
	b.Run("none", func(b *testing.B) { run(b, func(context.Context, string) {}) })
	for _, flood := range floods {
		b.Run(flood.name, func(b *testing.B) {
			run(b, func(ctx context.Context, addr string) {
				for ctx.Err() == nil { // it comes back once a second
					a := newAttacker(b, addr)
					again := time.After(time.Second)
					a.attack(ctx, flood.begin, flood.again)
					_ = a.conn.Close()
					select {
					case <-again:
					case <-ctx.Done():
					}
				}
			})
		})
	}
}
