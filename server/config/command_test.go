package config

import (
	"bytes"
	"io"
	"runtime/debug"
	"strings"
	"testing"
)

var manual = Manual{
	Of: Server, Name: "prog", Title: "A program.",
	Commands: []Command{{About: "do it"}, {Name: "token", Args: "USER", About: "print one", More: "  more\n"}, {Name: "topics apply|verify", About: "make them"}, {Name: "topics acl", About: "rights"}},
	Other: func(w io.Writer, words []string) bool {
		_, _ = io.WriteString(w, strings.Join(words, "+"))
		return words[0] == "other"
	},
	OtherUsage: "others:\n",
}

// Help and version are answered whatever else is wrong, in every form in which people ask
// for them.
func TestAnswer(t *testing.T) {
	const all, version = "A program.\n\nusage:\n", "prog "
	for _, tt := range []struct{ line, says, not string }{
		{"--help", all, ""},
		{"-h", all, ""},
		{"help", all, ""},
		{"--listen nonsense help", all, ""},
		{"--listen x --help", "--web-origins (PARLEY_WEB_ORIGINS)", ""},
		{"help token", "prog [flags] token USER\n  print one\n  more\n", "usage"},
		{"token --help", "token USER", "usage"},
		{"token -h", "token USER", "topics"},
		{"token bob -h", "token USER", "topics"},
		{"help topics", "topics acl", "token"},
		{"topics --help", "topics apply|verify", "token"},
		{"help topics acl", "rights", "token"},
		{"help topics apply", "make them", "token"},
		{"other x -h", "other+x", "usage"},
		{"help other", "other", "usage"},
		{"version", version, "usage"},
		{"--version", version, "usage"},
		{"-version", version, "usage"},
		{"--data-dir /x version", version, "usage"},
	} {
		var out bytes.Buffer
		done, err := manual.Answer(&out, strings.Fields(tt.line))
		if !done || err != nil || !strings.Contains(out.String(), tt.says) || tt.not != "" && strings.Contains(out.String(), tt.not) || !strings.HasSuffix(out.String(), "\n") && !strings.Contains(tt.line, "other") {
			t.Errorf("%s: %v %v %s", tt.line, done, err, &out)
		}
	}
	for _, line := range []string{"", "token bob", "token -- -h", "--listen x", "--nope", "dance", "--nope --help"} {
		var out bytes.Buffer
		if done, err := manual.Answer(&out, strings.Fields(line)); done || err != nil || out.Len() > 0 {
			t.Errorf("%s: %v %v %s", line, done, err, &out)
		}
	}
	if done, err := manual.Answer(io.Discard, []string{"help", "dance"}); !done || err == nil || !strings.Contains(err.Error(), `unknown command "dance"`) {
		t.Error(done, err)
	}
}

func TestBuiltFrom(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2030-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"}, {Key: "GOOS", Value: "x"},
	}}
	if got := strings.Join(builtFrom(info), " "); got != "v1.2.3 commit abc of 2030-01-02T03:04:05Z with changes" {
		t.Error(got)
	}
}
