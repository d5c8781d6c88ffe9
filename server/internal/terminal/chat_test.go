package terminal

import (
	"errors"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/cmdline"
)

// A chat needs a terminal, and a token that says whose it is.
func TestChat(t *testing.T) {
	var usage cmdline.UsageError
	if _, _, err := run(t, serve(t), "chat alice"); !errors.As(err, &usage) ||
		!strings.Contains(err.Error(), "needs a terminal") {
		t.Error(err)
	}
	for token, want := range map[string]string{
		"e30.eyJzdWIiOiJhbGljZSJ9.c2ln": "alice", "e30.e30.c2ln": "", "e30.e31.c2ln": "", "a.b": "", "a.*.c": "",
	} {
		if got, err := subject(token); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", token, got, err)
		}
	}
}
