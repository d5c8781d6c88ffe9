package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// paging is a store with short pages that fails after some of them.
type paging struct {
	store.Store
	size  int
	left  atomic.Int64 // pages of the list of subjects
	held  atomic.Int64 // most rows of one answer
	hold  chan struct{}
	began chan struct{}
}

func (p *paging) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if q.PK != "#subjects" {
		return p.Store.Query(ctx, q)
	}
	if p.left.Add(-1) < 0 {
		return store.Page{}, errors.New("the disk is gone")
	}
	if p.hold != nil {
		p.began <- struct{}{}
		<-p.hold
	}
	q.Limit = p.size
	page, err := p.Store.Query(ctx, q)
	p.held.Store(max(p.held.Load(), int64(len(page.Rows))))
	return page, err
}

func many(t *testing.T, n int) *paging {
	t.Helper()
	p := &paging{Store: storetest.NewMemory(time.Now), size: 100}
	r := registry.New(p.Store)
	for i := range n {
		if _, err := r.Register(t.Context(), fmt.Sprintf("subject-with-a-long-name-%060d", i), registry.Schema{Text: text1},
			registry.RegisterOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// A list that fails halfway is cut, so that nobody takes a part for the whole; one that
// fails at once is refused.
func TestCutLists(t *testing.T) {
	racetest.SkipSerial(t)
	p := many(t, 800)
	h := httptest.NewServer(Handler(registry.New(p), slog.New(slog.DiscardHandler)))
	defer h.Close()
	for pages, want := range map[int64]int{0: 500, 6: 0} {
		p.left.Store(pages)
		status, body := 0, []byte(nil)
		res, err := http.Get(h.URL + "/subjects")
		if err == nil {
			status = res.StatusCode
			body, err = io.ReadAll(res.Body)
			res.Body.Close()
		}
		switch {
		case want == 500 && (err != nil || status != 500 ||
			!same(t, string(body), `{"error_code":50001,"message":"Error in the backend data store"}`)):
			t.Errorf("%d pages: %d %s %v", pages, status, body, err)
		case want == 0 && (err == nil || status != 200 || len(body) == 0):
			t.Errorf("%d pages: %d, %d bytes, %v: the list ends as if that were all", pages, status, len(body), err)
		}
	}
	p.left.Store(1000)
	if status, body := call(t, "GET", h.URL+"/subjects", ""); status != 200 || len(body) < 60_000 || p.held.Load() != 100 {
		t.Errorf("%d, %d bytes, %d rows at once", status, len(body), p.held.Load())
	}
}

// Lists beyond a number wait for others to end.
func TestListsAtOnce(t *testing.T) {
	p := many(t, 1)
	p.left.Store(1000)
	p.hold, p.began = make(chan struct{}), make(chan struct{}, 100)
	h := httptest.NewServer(Handler(registry.New(p), slog.New(slog.DiscardHandler)))
	defer h.Close()
	const callers = 12
	done := make(chan int, callers)
	for range callers {
		go func() {
			conn, err := net.Dial("tcp", h.Listener.Addr().String())
			if err != nil {
				done <- 0
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, "GET /subjects HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				done <- 0
				return
			}
			_, _ = io.Copy(io.Discard, res.Body)
			done <- res.StatusCode
		}()
	}
	for range 8 {
		<-p.began
	}
	select {
	case <-p.began:
		t.Error("a ninth list runs")
	case <-time.After(200 * time.Millisecond):
	}
	close(p.hold)
	for range callers {
		if status := <-done; status != 200 {
			t.Errorf("status %d", status)
		}
	}
}
