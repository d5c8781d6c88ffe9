package caller_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/link/caller"
)

// What one process says of a caller is what another one reads; what is no caller is an error.
func TestCaller(t *testing.T) {
	want := caller.Caller{Principal: "ada", Operator: true, Creator: true, Session: "s",
		ExpiresAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	h := http.Header{}
	testkit.Must(t, want.Introduce(h))
	got, err := caller.From(h)
	testkit.Must(t, err)
	testkit.Equal(t, "caller", got, want)
	for name, text := range map[string]string{"nothing": "", "no base64": "%%", "no JSON": "xxxx", "a list": "W10"} {
		h.Set(caller.Header, text)
		if got, err := caller.From(h); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
