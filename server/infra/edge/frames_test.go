package edge

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// The frames that are found are those that x/net's Framer wrote, however they are cut
// into pieces.
func TestFramesAreFound(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var b bytes.Buffer
		b.WriteString(http2.ClientPreface)
		f := http2.NewFramer(&b, nil)
		f.AllowIllegalWrites = true
		var want []frame
		for range r.IntN(50) {
			kind, payload := byte(r.IntN(12)), make([]byte, r.IntN(3)*r.IntN(20_000))
			if err := f.WriteRawFrame(http2.FrameType(kind), http2.Flags(r.IntN(256)), r.Uint32()>>1, payload); err != nil {
				t.Fatal(err)
			}
			want = append(want, frame{kind, len(payload)})
		}
		var got []frame
		var in frames
		for b.Len() > 0 {
			for rest := b.Next(1 + r.IntN(1+r.IntN(9_000))); ; {
				f, left, ok := in.next(rest)
				if !ok {
					break
				}
				got, rest = append(got, f), left
			}
		}
		if !slices.Equal(got, want) || in.mode != framed {
			t.Fatalf("seed %d: %v, not %v", seed, got, want)
		}
	}
}

// What is not HTTP/2 has no frames.
func TestOtherProtocols(t *testing.T) {
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/1.1\r\n\r\n", http2.ClientPreface[:20] + "xxxx",
		"\x16\x03\x01"} {
		var in frames
		for i := range text {
			if f, _, ok := in.next([]byte(text[i : i+1])); ok {
				t.Errorf("%q: a frame of %s", text, f.name())
			}
		}
		if in.mode != plain {
			t.Errorf("%q counts as HTTP/2", text)
		}
	}
}

// fed is a connection that takes all and gives what it was given.
type fed struct {
	net.Conn
	bytes.Buffer
	closed bool
}

func (f *fed) Read(b []byte) (int, error)  { return f.Buffer.Read(b) }
func (f *fed) Write(b []byte) (int, error) { return len(b), nil }
func (f *fed) Close() error                { f.closed = true; return nil }
func (f *fed) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// talk is a guarded connection of HTTP/2, and both sides' framers.
type talk struct {
	*Conn
	in             *fed
	client, server *http2.Framer
}

func newTalk(t *testing.T) *talk {
	g := newGate(t, Limits{Connections: 10})
	in := &fed{}
	c := &talk{Conn: g.admit(in), in: in}
	in.WriteString(http2.ClientPreface)
	c.client, c.server = http2.NewFramer(&in.Buffer, nil), http2.NewFramer(c.Conn, nil)
	c.server.AllowIllegalWrites = true
	return c
}

// took reads all that has come, and reports whether the connection is still there.
func (c *talk) took() bool {
	for b := make([]byte, 4096); c.in.Len() > 0; {
		if _, err := c.Read(b); err != nil {
			return false
		}
	}
	return true
}

// A connection begins with 2,000 frames and gets 200 a second, and not more than 2,000
// by waiting; one more cuts it.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTalk(t)
		send := func(n int) bool {
			for range n {
				_ = c.client.WritePing(false, [8]byte{})
			}
			return c.took()
		}
		if !send(2_000) {
			t.Fatal("cut within the first 2,000")
		}
		time.Sleep(time.Second)
		if !send(200) {
			t.Fatal("cut within 200 of a second")
		}
		time.Sleep(time.Hour)
		if !send(2_000) {
			t.Fatal("cut after an hour's pause")
		}
		if send(1) || !c.in.closed || c.guard.Stats().Flooded != 1 || c.guard.Stats().Open != 0 {
			t.Errorf("2,001 frames at once are taken: %+v", c.guard.Stats())
		}
	})
}

// Frames that answer what was sent are not counted against a client, at whatever rate:
// updates of two windows and a ping for each event of a busy stream.
func TestAnswersAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTalk(t)
		c.took()
		for n := range 20_000 {
			_ = c.server.WriteData(1, false, make([]byte, 222))
			_ = c.client.WriteWindowUpdate(0, 222)
			_ = c.client.WriteWindowUpdate(1, 222)
			_ = c.client.WritePing(false, [8]byte{})
			if !c.took() {
				t.Fatalf("cut after %d events", n)
			}
		}
		for n := range 20_000 { // calls: headers, a body in two parts, an answer
			for range 3 {
				_ = c.client.WriteData(1, false, nil)
			}
			_ = c.server.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true})
			if !c.took() {
				t.Fatalf("cut after %d calls", n)
			}
		}
	})
}

// A window of a byte makes the server send many frames; each pays for none.
func TestTinyFramesPayForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTalk(t)
		c.took()
		for n := 0; c.took(); n++ {
			if n > 2_000 {
				t.Fatal("not cut")
			}
			_ = c.client.WriteWindowUpdate(1, 1)
			_ = c.server.WriteData(1, false, make([]byte, 1))
		}
	})
}

// Who has shown a token sends messages on a stream of requests at whatever rate; empty data
// is paid for, and so is everything of strangers.
func TestMessagesAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name    string
			trusted bool
			length  int
			taken   bool
		}{{"messages", true, 5, true}, {"empty data", true, 0, false}, {"less than a message", true, 4, false},
			{"a stranger's", false, 5, false}} {
			c := newTalk(t)
			if c.took(); tt.trusted {
				Trust(context.WithValue(t.Context(), connKey{}, c.Conn))
			}
			taken := true
			for n := 0; n < 5_000 && taken; n++ {
				_ = c.client.WriteData(1, false, make([]byte, tt.length))
				taken = c.took()
			}
			if taken != tt.taken {
				t.Errorf("%s: taken is %v", tt.name, taken)
			}
		}
	})
}
