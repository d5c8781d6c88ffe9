package history_test

import (
	"testing"

	"github.com/parley-chat/parley/server/history"
)

func TestCommit(t *testing.T) {
	for _, p := range []history.Commit{{Generation: "g", Commit: 0}, {Generation: "0a", Commit: 1<<63 - 1}} {
		if got, ok := history.Parse(p.String()); !ok || got != p {
			t.Errorf("%+v became %+v, %v", p, got, ok)
		}
	}
	if s := (history.Commit{Commit: 7}).String(); s != "" {
		t.Errorf("no place is %q", s)
	}
	for _, s := range []string{"", "g", "g-", "g--1", "g-x", "g-9223372036854775808", "g-1-2"} {
		if p, ok := history.Parse(s); ok {
			t.Errorf("%q is %+v", s, p)
		}
	}
}
