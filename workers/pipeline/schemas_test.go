package pipeline

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
)

// Parley's own schemas are not compiled when they are registered. Clients that compile their texts get the
// same schemas.
func TestTextsOfOwnSchemas(t *testing.T) {
	r := registry.New(storetest.NewMemory(time.Now))
	own, err := Resolve(t.Context(), r, versions.State{}, true)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for v, err := range r.List(t.Context(), registry.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		found, err := r.Lookup(t.Context(), v.Subject, v.Schema, false, false)
		if err != nil || found.ID != v.ID || !strings.HasPrefix(v.Text, "syntax = ") {
			t.Errorf("%s: got version %d, want %d, %v: %.300s", v.Subject, found.ID, v.ID, err, v.Text)
		}
		n++
	}
	if n <= len(own.Events)+len(own.Messages) {
		t.Errorf("%d versions of %d events, %d messages and what they import", n, len(own.Events), len(own.Messages))
	}
}
