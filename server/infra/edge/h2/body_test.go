package h2

import (
	"errors"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A request that is cancelled before its body was read does not look complete, although all
// of the body had come: a part of it might be another request.
func TestCancelledBodyIsNotWhole(t *testing.T) {
	started, cancelled, read := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	p := dial(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 4))
		close(started)
		<-cancelled
		_, err := io.ReadAll(r.Body)
		read <- err
	})
	p.ask(1, false, "content-length", "10")
	p.must(p.f.WriteData(1, true, []byte("0123456789")))
	<-started
	p.must(p.f.WriteRSTStream(1, http2.ErrCodeCancel))
	p.must(p.f.WritePing(false, [8]byte{1}))
	if _, ok := p.next().(*http2.PingFrame); !ok {
		t.Fatal("no answer to the ping, want one after the reset was processed")
	}
	close(cancelled)
	if err := <-read; err == nil {
		t.Error("the body of a cancelled request ends as if it were whole, want an error")
	}
}

// Trailers end no body that is shorter than its length.
func TestTrailersOfAShortBody(t *testing.T) {
	read := make(chan error, 1)
	p := dial(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		read <- err
	})
	p.ask(1, false, "content-length", "10")
	p.must(p.f.WriteData(1, false, []byte("01234")))
	p.must(p.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true}))
	if a := p.answer(1); !a.cut || a.reset != http2.ErrCodeProtocol {
		t.Errorf("%+v, want a protocol error", a)
	}
	if err := <-read; err == nil {
		t.Error("five of ten bytes are read as a whole body, want an error")
	}
}

// Headers of a stream whose request has ended are an error of the stream.
func TestHeadersAfterTheEnd(t *testing.T) {
	release := make(chan struct{})
	p := dial(t, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	p.ask(1, true)
	p.ask(1, true)
	if a := p.answer(1); !a.cut || a.reset != http2.ErrCodeStreamClosed {
		t.Errorf("%+v, want the stream closed", a)
	}
}

// Nobody is told to continue after the answer has begun.
func TestNoContinueAfterTheAnswer(t *testing.T) {
	p := dial(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.ReadAll(r.Body)
	})
	p.ask(1, false, "expect", "100-continue")
	f, ok := p.next().(*http2.MetaHeadersFrame)
	if !ok || f.PseudoValue("status") != "202" {
		t.Fatalf("%v, want status 202", f)
	}
	p.must(p.f.WriteData(1, true, nil))
	if f, ok := p.next().(*http2.DataFrame); !ok || !f.StreamEnded() {
		t.Errorf("%v follows, want the end", f)
	}
}

// What a handler has read of a body goes, also if the client is always ahead of it.
func TestReadBytesAreNotKept(t *testing.T) {
	largest, ended := 0, make(chan struct{})
	p := dial(t, func(_ http.ResponseWriter, r *http.Request) {
		defer close(ended)
		b, ok := r.Body.(*body)
		if !ok {
			t.Errorf("a body is %T", r.Body)
			return
		}
		for range 4 << 10 { // 4 MB, a KB at a time, while the next one has come
			b.st.c.mu.Lock()
			for len(b.rest()) < 2<<10 {
				b.st.c.mu.Unlock()
				time.Sleep(10 * time.Microsecond) // the client sends; nothing signals it
				b.st.c.mu.Lock()
			}
			largest = max(largest, cap(b.data))
			b.st.c.mu.Unlock()
			if _, err := io.ReadFull(r.Body, make([]byte, 1<<10)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	p.ask(1, false)
	window, updates := int64(65535), make(chan int64, 1<<16)
	go func() {
		for {
			f, err := p.f.ReadFrame()
			if err != nil {
				return
			}
			if u, ok := f.(*http2.WindowUpdateFrame); ok && u.StreamID == 1 {
				updates <- int64(u.Increment)
			}
		}
	}()
	for chunk := make([]byte, 8191); ; window -= int64(len(chunk)) {
		for window < int64(len(chunk)) {
			select {
			case n := <-updates:
				window += n
			case <-ended:
				if largest > 512<<10 {
					t.Errorf("%d KB are kept of a body whose window is 64 KB, want at most 512", largest>>10)
				}
				return
			}
		}
		p.must(p.f.WriteData(1, false, chunk))
	}
}

// A handler with a deadline ends at it, also if the client takes nothing of what TCP has.
func TestDeadlineOfAWriteToAStuckConnection(t *testing.T) {
	failed := make(chan error, 1)
	p := dial(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				failed <- err
				return
			}
		}
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	p.must(p.f.WriteWindowUpdate(0, 1<<31-1-65535))
	p.ask(1, true)
	select {
	case err := <-failed:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v, want the deadline", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the handler still writes, want it ended at its deadline")
	}
}
