package backend_test

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/store"
)

// A process whose clock is far from the store's is not ready, until its clock is near
// again.
func TestSkewedClockIsNotReady(t *testing.T) {
	t.Parallel()
	local := os.Getenv("PARLEY_TEST_DYNAMODB")
	if local == "" {
		t.Skip("not run: PARLEY_TEST_DYNAMODB is not set")
	}
	at, err := url.Parse(local)
	if err != nil {
		t.Fatal(err)
	}
	var ahead atomic.Int64 // of the store's clock
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(at) },
		ModifyResponse: func(r *http.Response) error {
			r.Header.Set("Date", time.Now().Add(time.Duration(ahead.Load())).UTC().Format(http.TimeFormat))
			return nil
		},
	}
	service := httptest.NewServer(proxy)
	defer service.Close()
	tablesAt := backend.Tables{Endpoint: service.URL, Prefix: "skew_" + strings.ToLower(rand.Text()[:8]) + "_"}
	cfg := backend.Config{Distributed: &backend.Distributed{Tables: tablesAt}, Logger: slog.New(slog.DiscardHandler)}
	tables, err := tablesAt.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	if _, err := tables.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	e, err := backend.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		ahead time.Duration
		ready bool
	}{{0, true}, {10 * time.Second, true}, {25 * time.Second, false}, {-25 * time.Second, false}, {0, true}} {
		ahead.Store(int64(c.ahead))
		if _, err := e.Store.Get(t.Context(), store.Key{Table: store.Users, PK: "nobody"}, store.Strong); err != nil {
			t.Fatal(err)
		}
		if err := e.Ready(t.Context()); (err == nil) != c.ready || (err != nil && !errors.Is(err, backend.ErrSkew)) {
			t.Errorf("%v off: %v", c.ahead, err)
		}
	}
}
