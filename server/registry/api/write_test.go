package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
)

// Where operators are known, others read and ask, and change nothing.
func TestOnlyOperatorsWrite(t *testing.T) {
	r := registry.New(storetest.NewMemory(time.Now))
	schema := `{"schemaType":"PROTOBUF","schema":"syntax = \"proto3\"; message M { string a = 1; }"}`
	s, err := Listen(t.Context(), Config{
		Registry: r, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
		Operator: func(h http.Header) (string, error) {
			if h.Get("Authorization") != "Bearer token" {
				return "", errors.New("no")
			}
			return "ada", nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = s.Run(ctx, func() {}) }()
	do := func(method, path, body string, auth func(*http.Request)) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		auth(req)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	nobody := func(*http.Request) {}
	bearer := func(r *http.Request) { r.Header.Set("Authorization", "Bearer token") }
	basic := func(r *http.Request) { r.SetBasicAuth("anybody", "token") }
	wrong := func(r *http.Request) { r.SetBasicAuth("anybody", "other") }
	writes := []struct{ method, path, body string }{
		{"POST", "/subjects/a/versions", schema}, {"POST", "/subjects/a/versions/", schema},
		{"POST", "/subjects/a/version%73", schema},
		{"DELETE", "/subjects/a", ""}, {"DELETE", "/subjects/a/versions/1", ""},
		{"PUT", "/config", `{"compatibility":"NONE"}`},
		{"PUT", "/config/a", `{"compatibility":"NONE"}`}, {"DELETE", "/config", ""}, {"DELETE", "/config/a", ""},
		{"PUT", "/mode", `{"mode":"READONLY"}`}, {"PUT", "/mode/a", `{"mode":"READONLY"}`}, {"DELETE", "/mode", ""},
		{"DELETE", "/mode/a", ""},
	}
	for _, w := range writes {
		for name, auth := range map[string]func(*http.Request){"nobody": nobody, "wrong": wrong} {
			if got := do(w.method, w.path, w.body, auth); got != 401 {
				t.Errorf("%s %s by %s: %d", w.method, w.path, name, got)
			}
		}
	}
	for subject, err := range r.Subjects(t.Context(), registry.ListOptions{Deleted: true}) {
		t.Errorf("%v, %v", subject, err)
	}
	for name, auth := range map[string]func(*http.Request){"bearer": bearer, "basic": basic} {
		if got := do("POST", "/subjects/"+name+"/versions", schema, auth); got != 200 {
			t.Errorf("an operator's registration (%s): %d", name, got)
		}
	}
	reads := []struct{ method, path, body string }{
		{"GET", "/subjects", ""}, {"GET", "/subjects/basic/versions/1", ""}, {"GET", "/schemas/ids/1", ""},
		{"GET", "/config", ""}, {"GET", "/mode", ""},
		{"POST", "/subjects/basic", schema}, {"POST", "/compatibility/subjects/basic/versions/latest", schema},
		{"POST", "/compatibility/subjects/basic/versions", schema},
	}
	for _, w := range reads {
		if got := do(w.method, w.path, w.body, nobody); got != 200 {
			t.Errorf("%s %s: %d", w.method, w.path, got)
		}
	}
}
