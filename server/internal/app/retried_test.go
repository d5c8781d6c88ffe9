package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/store"
)

// throttledChunks is a store that throttles some of the plans that make the pending members of a
// group members.
type throttledChunks struct {
	store.Store
	left atomic.Int64
}

func (s *throttledChunks) Transact(ctx context.Context, p store.Plan) error {
	for _, w := range p.Writes {
		if w.Key.Table == store.PendingMembers && w.Op != store.OpPut && s.left.Add(-1) >= 0 {
			return fmt.Errorf("%w (injected)", store.ErrThrottled)
		}
	}
	return s.Store.Transact(ctx, p)
}

// L-169: the program shows how often chunks of new groups ran again because the store throttled
// them, and nothing for a creation that met no trouble.
func TestThrottledChunksAreShown(t *testing.T) {
	cfg, says := parse(t, []string{"--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0", "--registry-listen",
		"127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--data-dir", t.TempDir()}, nil)
	if says != "" {
		t.Fatal(says)
	}
	cfg.onLoopback = true
	log := slog.New(slog.DiscardHandler)
	b, err := openBackend(cfg, io.Discard, log, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	st := &throttledChunks{Store: b.Store}
	b.Store = st
	p, err := build(t.Context(), cfg, b, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	for _, retries := range []int64{0, 3} {
		st.left.Store(retries)
		c, err := p.chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		if err != nil || c.Incomplete != nil {
			t.Fatal(c, err)
		}
		rec := httptest.NewRecorder()
		p.metrics.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		if want := fmt.Sprintf("\n%s %d\n", telemetry.CreationRetries, retries); !strings.Contains(rec.Body.String(), want) {
			t.Errorf("after %d throttled chunks the metrics lack %q", retries, want)
		}
	}
}
