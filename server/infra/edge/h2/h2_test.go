package h2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// peer is a client that says what it likes, frame by frame.
type peer struct {
	*testing.T
	srv   *Server
	conn  net.Conn
	f     *http2.Framer
	block bytes.Buffer
	enc   *hpack.Encoder
	ended chan struct{} // the server's end is over
}

// dial connects to a server of a handler; the settings are exchanged.
func dial(t *testing.T, h http.HandlerFunc, settings ...http2.Setting) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := &peer{T: t, srv: &Server{Handler: h, MaxHeader: 16 << 10, Log: slog.New(slog.DiscardHandler)},
		ended: make(chan struct{})}
	p.conn, err = net.Dial("tcp", l.Addr().String())
	p.must(err)
	nc, err := l.Accept()
	p.must(err)
	go func() {
		defer close(p.ended)
		p.srv.Serve(context.Background(), nc)
	}()
	t.Cleanup(func() {
		_ = p.conn.Close()
		<-p.ended
	})
	p.must(p.conn.SetDeadline(time.Now().Add(30 * time.Second)))
	p.f = http2.NewFramer(p.conn, p.conn)
	p.f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.enc = hpack.NewEncoder(&p.block)
	p.must(p.f.WriteSettings(settings...))
	return p
}

func (p *peer) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// ask begins a request.
func (p *peer) ask(id uint32, end bool, fields ...string) {
	p.Helper()
	p.block.Reset()
	all := append([]string{":method", "POST", ":scheme", "http", ":path", "/", ":authority", "here"}, fields...)
	for i := 0; i < len(all); i += 2 {
		if i+2 < len(all) && all[i][0] == ':' && strings.Contains(strings.Join(all[i+2:], " "), all[i]+" ") {
			continue // given again
		}
		p.must(p.enc.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]}))
	}
	p.must(p.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block.Bytes(), EndHeaders: true,
		EndStream: end}))
}

// next is the next frame that is not about settings or windows.
func (p *peer) next() http2.Frame {
	p.Helper()
	for {
		f, err := p.f.ReadFrame()
		p.must(err)
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				p.must(p.f.WriteSettingsAck())
			}
		case *http2.WindowUpdateFrame:
		default:
			return f
		}
	}
}

// answer is a whole response.
type answer struct {
	header  map[string]string
	body    string
	trailer map[string]string
	reset   http2.ErrCode
	cut     bool // by a reset
}

func (p *peer) answer(id uint32) (a answer) {
	p.Helper()
	for {
		f := p.next()
		if f.Header().StreamID != id {
			p.Fatalf("%v instead of stream %d", f, id)
		}
		ended := false
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			m := map[string]string{}
			for _, h := range f.Fields {
				m[h.Name] = h.Value
			}
			if a.header == nil || a.header[":status"] == "100" {
				a.header = m
			} else {
				a.trailer = m
			}
			ended = f.StreamEnded()
		case *http2.DataFrame:
			a.body += string(f.Data())
			ended = f.StreamEnded()
		case *http2.RSTStreamFrame:
			a.reset, a.cut = f.ErrCode, true
			return a
		}
		if ended {
			return a
		}
	}
}

// goAway is the code with which the server ends the connection.
func (p *peer) goAway() http2.ErrCode {
	p.Helper()
	for {
		if f, ok := p.next().(*http2.GoAwayFrame); ok {
			return f.ErrCode
		}
	}
}

func TestAnswers(t *testing.T) {
	p := dial(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			w.Header().Set("Connection", "close")
			w.Header().Set("X-Split", "a\r\nb: c")
			w.Header().Set("X-Seen", r.Method+" "+r.Host+" "+r.RequestURI+" "+r.Header.Get("Cookie"))
			_, _ = w.Write(b)
		case "/trailers":
			w.Header().Set("Trailer", "X-One")
			_, _ = io.WriteString(w, "body")
			w.(http.Flusher).Flush()
			w.Header().Set("X-One", "1")
			w.Header().Set(http.TrailerPrefix+"X-Two", "2")
		case "/none":
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("a body: %v", err)
			}
		case "/large":
			_, _ = w.Write(bytes.Repeat([]byte("x"), 50_000))
		case "/panic":
			panic(http.ErrAbortHandler)
		}
	})
	p.ask(1, false, ":path", "/echo?a=b", "cookie", "a=1", "cookie", "b=2")
	p.must(p.f.WriteData(1, false, []byte("hel")))
	p.must(p.f.WriteData(1, true, []byte("lo")))
	a := p.answer(1)
	if a.body != "hello" || a.header[":status"] != "200" || a.header["content-length"] != "5" ||
		a.header["x-seen"] != "POST here /echo?a=b a=1; b=2" || a.header["date"] == "" ||
		!strings.HasPrefix(a.header["content-type"], "text/plain") {
		t.Errorf("%+v", a)
	}
	if a.header["connection"] != "" || a.header["x-split"] != "" {
		t.Errorf("headers that HTTP/2 does not have: %+v", a)
	}
	p.ask(3, true, ":path", "/trailers")
	a = p.answer(3)
	if a.body != "body" || a.trailer["x-one"] != "1" || a.trailer["x-two"] != "2" || a.header["x-one"] != "" {
		t.Errorf("trailers: %+v", a)
	}
	p.ask(5, true, ":path", "/none")
	if a = p.answer(5); a.header[":status"] != "204" || a.body != "" || a.header["content-length"] != "" {
		t.Errorf("no content: %+v", a)
	}
	p.ask(7, true, ":path", "/large", ":method", "HEAD")
	if a = p.answer(7); a.body != "" || a.header["content-length"] != "50000" {
		t.Errorf("HEAD: %+v", a)
	}
	p.ask(9, true, ":path", "/panic")
	if a = p.answer(9); !a.cut || a.reset != http2.ErrCodeInternal {
		t.Errorf("panic: %+v", a)
	}
	p.ask(11, true, "connection", "close")
	if a = p.answer(11); !a.cut || a.reset != http2.ErrCodeProtocol {
		t.Errorf("a header of HTTP/1: %+v", a)
	}
	long := strings.Repeat("e", 5<<10)
	p.ask(13, true, "x-one", long, "x-two", long, "x-three", long, "x-four", long)
	if a = p.answer(13); a.header[":status"] != "431" {
		t.Errorf("long headers: %+v", a)
	}
	p.ask(15, false, ":path", "/none") // a body that nobody reads
	if a = p.answer(15); a.header[":status"] != "204" {
		t.Errorf("%+v", a)
	}
	if f, ok := p.next().(*http2.RSTStreamFrame); !ok || f.ErrCode != http2.ErrCodeNo {
		t.Errorf("the rest of a body is not refused: %v", f)
	}
	p.ask(17, false, ":path", "/echo", "expect", "100-continue")
	if f, ok := p.next().(*http2.MetaHeadersFrame); !ok || f.PseudoValue("status") != "100" {
		t.Fatalf("%v instead of a word to continue", f)
	}
	p.must(p.f.WriteData(17, true, []byte("now")))
	if a = p.answer(17); a.body != "now" {
		t.Errorf("%+v", a)
	}
}

// Data goes out as far as the client's windows reach, of the stream and of the connection,
// and what waits for one stream's does not hold up another.
func TestWindows(t *testing.T) {
	p := dial(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 100))
		w.(http.Flusher).Flush()
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
	read := func(id uint32) int {
		t.Helper()
		for {
			switch f := p.next().(type) {
			case *http2.MetaHeadersFrame:
			case *http2.DataFrame:
				if f.StreamID != id {
					t.Fatalf("data of stream %d", f.StreamID)
				}
				return len(f.Data())
			default:
				t.Fatalf("%v", f)
			}
		}
	}
	p.ask(1, true)
	if n := read(1); n != 10 {
		t.Fatalf("%d bytes, the window has 10", n)
	}
	p.ask(3, true)
	if n := read(3); n != 10 {
		t.Fatalf("%d bytes of the second stream", n)
	}
	p.must(p.f.WriteWindowUpdate(1, 25))
	if n := read(1); n != 25 {
		t.Fatalf("%d bytes, the window grew by 25", n)
	}
	// A smaller initial window takes from the streams that are open.
	p.must(p.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 5}))
	p.must(p.f.WriteWindowUpdate(1, 7))
	if n := read(1); n != 2 {
		t.Fatalf("%d bytes, the window is 7 - 5", n)
	}
	p.must(p.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000}))
	rest := map[uint32]int{}
	for rest[1] < 63 || rest[3] < 90 {
		if f, ok := p.next().(*http2.DataFrame); ok {
			rest[f.StreamID] += len(f.Data())
		}
	}
}

// All streams together get no more than the connection's window.
func TestWindowOfTheConnection(t *testing.T) {
	p := dial(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(make([]byte, 40_000))
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	p.ask(1, true)
	p.ask(3, true)
	sum, ended := 0, 0
	take := func() (pong bool) {
		t.Helper()
		switch f := p.next().(type) {
		case *http2.PingFrame:
			return true
		case *http2.DataFrame:
			sum += len(f.Data())
			if f.StreamEnded() {
				ended++
			}
		}
		return false
	}
	for sum < 65535 {
		take()
	}
	p.must(p.f.WritePing(false, [8]byte{1}))
	for !take() { // the answer comes after what was sent before it
	}
	if sum != 65535 || ended == 2 {
		t.Fatalf("%d bytes came, %d streams ended", sum, ended)
	}
	p.must(p.f.WriteWindowUpdate(0, 100_000))
	for ended < 2 {
		take()
	}
	if sum != 80_000 {
		t.Errorf("%d bytes came in all", sum)
	}
}

// A client may send again what was read, and no more than it was allowed to.
func TestBodies(t *testing.T) {
	const size = 3 << 20 // more than all windows
	p := dial(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/later" {
			<-r.Context().Done()
			return
		}
		n, err := io.Copy(io.Discard, r.Body)
		if n != size || err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	})
	window := map[uint32]int{0: 65535, 1: 65535}
	p.ask(1, false)
	for left := size; left > 0; {
		n := min(left, window[0], window[1], 16<<10)
		if n > 0 {
			p.must(p.f.WriteData(1, left == n, make([]byte, n)))
			left, window[0], window[1] = left-n, window[0]-n, window[1]-n
			continue
		}
		f, err := p.f.ReadFrame()
		p.must(err)
		if u, ok := f.(*http2.WindowUpdateFrame); ok {
			window[u.StreamID] += int(u.Increment)
		}
	}
	if a := p.answer(1); a.header[":status"] != "200" {
		t.Errorf("%+v", a)
	}
	p.ask(3, false, ":path", "/later")
	for range 4 { // more than a stream's window
		p.must(p.f.WriteData(3, false, make([]byte, 16<<10)))
	}
	if a := p.answer(3); !a.cut || a.reset != http2.ErrCodeFlowControl {
		t.Errorf("too much data: %+v", a)
	}
	p.ask(5, false, ":path", "/later", "content-length", "3")
	p.must(p.f.WriteData(5, false, []byte("four")))
	if a := p.answer(5); !a.cut || a.reset != http2.ErrCodeProtocol {
		t.Errorf("more than was announced: %+v", a)
	}
}
