package ops_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

// get asks for a page as whoever has a token; "" is nobody.
func get(ctx context.Context, r *opstest.Fixture, path, token string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Addr+path, nil)
	if err != nil {
		return 0, nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

func operatorToken(t *testing.T, r *opstest.Fixture) string {
	t.Helper()
	token, err := r.Key.IssueOperator("ada", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// Profiles are for operators.
func TestProfilesAreForOperators(t *testing.T) {
	r := opstest.New(t, nil)
	user, err := r.Key.Issue("ada", time.Now(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	operator := operatorToken(t, r)
	for _, c := range []struct {
		token, path string
		want        int
	}{
		{"", "/debug/pprof/", http.StatusUnauthorized},
		{"", "/debug/pprof/heap", http.StatusUnauthorized},
		{"", "/debug/pprof/profile?seconds=1", http.StatusUnauthorized},
		{user, "/debug/pprof/heap", http.StatusUnauthorized},
		{operator, "/debug/pprof/", http.StatusOK},
		{operator, "/debug/pprof/goroutine?debug=2", http.StatusOK},
		{operator, "/debug/pprof/profile?seconds=121", http.StatusBadRequest},
		{operator, "/debug/pprof/trace?seconds=0.5", http.StatusBadRequest},
		{operator, "/debug/pprof/none", http.StatusNotFound},
	} {
		status, body, err := get(t.Context(), r, c.path, c.token)
		if err != nil || status != c.want {
			t.Errorf("%s with token %.10q: %d %v, want %d: %s", c.path, c.token, status, err, c.want, body)
		}
	}
	status, body, err := get(t.Context(), r, "/debug/pprof/heap", operator)
	if err != nil || status != http.StatusOK {
		t.Fatalf("heap: %d %v", status, err)
	}
	zipped, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		t.Fatalf("the heap's profile is not compressed: %v", err)
	}
	if profile, err := io.ReadAll(zipped); err != nil || !bytes.Contains(profile, []byte("inuse_space")) {
		t.Errorf("no profile of the heap in %d bytes: %v", len(profile), err)
	}
}

// One profile is taken at a time, and one that nobody waits for ends.
func TestOneProfileAtATime(t *testing.T) {
	r := opstest.New(t, nil)
	operator := operatorToken(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		status, err := http.StatusTooManyRequests, error(nil)
		for err == nil && status == http.StatusTooManyRequests { // until asks for profiles, too
			status, _, err = get(ctx, r, "/debug/pprof/profile?seconds=120", operator)
		}
		ended <- err
	}()
	until := func(want int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint("status ", want), func() bool {
			status, body, err := get(t.Context(), r, "/debug/pprof/threadcreate", operator)
			if err != nil || (status != http.StatusOK && status != http.StatusTooManyRequests) {
				t.Fatalf("%d %s %v", status, body, err)
			}
			return status == want
		})
	}
	until(http.StatusTooManyRequests)
	cancel()
	if err := <-ended; err == nil {
		t.Error("a canceled profile was answered")
	}
	until(http.StatusOK)
}
