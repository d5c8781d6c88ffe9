package app_test

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The collector of a server runs as its settings say, and operators see how.
func TestCollectorOfAServer(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	p := launch(t, t.TempDir(), "127.0.0.1:0", "--gc-percent", "150")
	if got := scrape(t, p.addr, "go_gc_gogc_percent"); got != 150 {
		t.Errorf("the heap grows by %v %%", got)
	}
	if limit := scrape(t, p.addr, "go_gc_gomemlimit_bytes"); limit >= math.MaxInt64 || limit < 1<<27 {
		t.Errorf("the limit is %v bytes", limit)
	}
	// The same listener has no profiles, whoever asks.
	r := &benchFixture{b: t, ctx: t.Context(), p: p, dir: p.dataDir()}
	r.readKey()
	operator, err := r.key.IssueOperator("ada", time.Now(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile"} {
		status, body := ask(t, &http.Client{Transport: newTransport(t, false)}, http.MethodGet, "http://"+p.addr+path,
			func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+operator) })
		if status != http.StatusNotFound || !strings.Contains(body, "no such path") {
			t.Errorf("%s: %d %.100s", path, status, body)
		}
	}
}
