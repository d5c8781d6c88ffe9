package opsctl

import (
	"bytes"
	"strings"
	"testing"
)

func TestHelpShowsHowACommandIsCalled(t *testing.T) {
	for _, c := range []struct {
		words []string
		first string
	}{
		{[]string{"deadletters"}, "workers deadletters count [flags]: count dead letters by group, topic and reason"},
		{[]string{"deadletters", "count"}, "workers deadletters count [flags]: count dead letters by group, topic and reason"},
		{[]string{"deadletters", "show"}, "workers deadletters show [flags] ID: show one, with its record and event"},
		{[]string{"audit"}, "workers audit [flags]: list what operators changed, and who saw what users wrote"},
	} {
		var out bytes.Buffer
		if !Help(&out, "workers", c.words) {
			t.Errorf("%v: no help", c.words)
		}
		if first, _, _ := strings.Cut(out.String(), "\n"); first != c.first {
			t.Errorf("%v: the help begins %q, not %q", c.words, first, c.first)
		}
	}
}
