package h2

import (
	"io"
	"net/http"
	"testing"

	"golang.org/x/net/http2"
)

// Bodies that no handler reads give the connection's window back when their streams are
// reset: a client that cancels uploads sends more than the window of 1 MiB in all.
func TestResetStreamsGiveTheWindowBack(t *testing.T) {
	p := dial(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/upload" {
			<-r.Context().Done()
		}
	})
	id := uint32(1)
	for range 160 { // 2.5 MiB
		p.ask(id, false, ":path", "/upload")
		p.must(p.f.WriteData(id, false, make([]byte, 16<<10)))
		p.must(p.f.WriteRSTStream(id, http2.ErrCodeCancel))
		id += 2
	}
	p.ask(id, true)
	if a := p.answer(id); a.header[":status"] != "200" {
		t.Errorf("%+v, want a request after the uploads served", a)
	}
}

// credit is what the client may still send of bodies together with what it may send again
// and was not told of yet. It waits until no stream is open and no handler works.
func (p *peer) credit() int64 {
	p.Helper()
	p.must(p.f.WritePing(false, [8]byte{1}))
	for pong := false; !pong; { // all frames before it are processed then
		_, pong = p.next().(*http2.PingFrame)
	}
	p.srv.mu.Lock()
	c := p.srv.list()[0]
	p.srv.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.streams) > 0 || c.handlers > 0 {
		c.wake.Wait()
	}
	return c.owed + c.taken
}

// Each byte of a body comes back to the connection's window once, however its stream ends:
// with less a client would stall in the end, with more it could fill the memory.
func TestCreditIsConserved(t *testing.T) {
	const chunk = 10 << 10
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		fields  []string
		do      func(p *peer)
	}{
		"read": {func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, nil, func(p *peer) {
			p.must(p.f.WriteData(1, true, make([]byte, chunk)))
		}},
		"not read": {func(http.ResponseWriter, *http.Request) {}, nil, func(p *peer) {
			p.must(p.f.WriteData(1, true, make([]byte, chunk)))
		}},
		"read in part, then reset": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, make([]byte, 100))
			<-r.Context().Done()
		}, nil, func(p *peer) {
			p.must(p.f.WriteData(1, false, make([]byte, chunk)))
			p.must(p.f.WriteRSTStream(1, http2.ErrCodeCancel))
		}},
		"closed by the handler": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, make([]byte, 100))
			_ = r.Body.Close()
			<-r.Context().Done()
		}, nil, func(p *peer) {
			p.must(p.f.WriteData(1, false, make([]byte, chunk)))
			p.must(p.f.WriteData(1, false, make([]byte, chunk)))
			p.must(p.f.WriteRSTStream(1, http2.ErrCodeCancel))
		}},
		"padded": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, nil, func(p *peer) {
			p.must(p.f.WriteDataPadded(1, false, make([]byte, chunk), make([]byte, 200)))
			p.must(p.f.WriteRSTStream(1, http2.ErrCodeCancel))
		}},
		"after a reset": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, nil, func(p *peer) {
			p.must(p.f.WriteRSTStream(1, http2.ErrCodeCancel))
			p.must(p.f.WriteData(1, false, make([]byte, chunk)))
		}},
		"after the end": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, nil, func(p *peer) {
			p.must(p.f.WriteData(1, true, make([]byte, chunk)))
			p.must(p.f.WriteData(1, true, make([]byte, chunk)))
		}},
		"more than the stream's window": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, nil,
			func(p *peer) {
				for range 7 {
					p.must(p.f.WriteData(1, false, make([]byte, chunk)))
				}
			}},
		"more than was announced": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			[]string{"content-length", "11000"}, func(p *peer) {
				p.must(p.f.WriteData(1, false, make([]byte, chunk)))
				p.must(p.f.WriteData(1, false, make([]byte, chunk)))
			}},
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, tt.handler)
			p.ask(1, false, tt.fields...)
			tt.do(p)
			if got := p.credit(); got != 1<<20 {
				t.Errorf("the connection's window and what comes back to it are %d bytes, want the 1048576 of the beginning", got)
			}
		})
	}
}
