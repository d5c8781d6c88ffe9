package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"buf.build/go/bufplugin/check"
	"buf.build/go/bufplugin/option"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/fixture"
)

func TestSpec(t *testing.T) {
	t.Parallel()
	if err := check.ValidateSpec(spec()); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	given, err := option.NewOptions(map[string]any{"scope": "api", "policy": "BACKWARD",
		"events": []string{"a.v1", "b.v1"}})
	if err != nil {
		t.Fatal(err)
	}
	o, err := options(given)
	if want := (compat.Options{Scope: compat.API, Policy: compat.Backward,
		Events: []string{"a.v1", "b.v1"}}); err != nil || !reflect.DeepEqual(o, want) {
		t.Errorf("the options are %+v (%v), expected those of the request", o, err)
	}
}

// Buf runs the plugin and prints its findings with their ids and positions (EVENT_TOPIC_CHANGED,
// which buf itself cannot detect).
func TestUnderBuf(t *testing.T) {
	t.Parallel()
	buf, err := filepath.Abs("../../.tools/bin/buf")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(buf); err != nil {
		t.Skip("buf is not installed: run .tools/install")
	}
	dir := t.TempDir()
	plugin := filepath.Join(dir, "buf-plugin-parley")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", plugin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range []struct{ use, fixture, scope, want string }{
		{"PARLEY", "EVENT_TOPIC_CHANGED", "event",
			"head/a.proto:4:1:EVENT_TOPIC_CHANGED (X01) t.v1.E: topic of an event changed (t to u)."},
		{"PARLEY", "ENUM_VALUE_REMOVED_NOT_RESERVED", "event",
			"head/a.proto:3:1:ENUM_VALUE_REMOVED_NOT_RESERVED (E04) t.v1.KIND_B: "},
		{"PARLEY", "FILE_REMOVED", "event", "FILE_REMOVED (M12) b.proto: file deleted."},
		{"PARLEY", "RPC_REMOVED", "api", "head/a.proto:6:1:RPC_REMOVED (S02) t.v1.V.Put: "},
		{"PARLEY", "FIELD_ADDED_OPTIONAL", "event", ""},
		{"EVENT_TOPIC_CHANGED", "EVENT_TOPIC_CHANGED", "event", "topic of an event changed"},
		{"X01", "EVENT_TOPIC_CHANGED", "event", "topic of an event changed"}, // the alias of the same rule
		{"X02", "EVENT_TOPIC_CHANGED", "event", ""},
		{"P02_WARN", "PRESENCE_TO_IMPLICIT", "event", "presence changed"},
	} {
		f, err := fixture.Load("../compat/testdata/" + c.fixture + ".txtar")
		if err != nil {
			t.Fatal(err)
		}
		module := filepath.Join(dir, c.use, c.fixture)
		config := `{"version":"v2","breaking":{"use":["` + c.use + `"]},"plugins":[{"plugin":"` + plugin +
			`","options":{"scope":"` + c.scope + `"}}]}`
		for side, files := range map[string]map[string]string{"base": f.BaseFiles, "head": f.HeadFiles} {
			files["buf.yaml"] = config
			for name, text := range files {
				path := filepath.Join(module, side, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd := exec.CommandContext(t.Context(), buf, "breaking", "head", "--against", "base")
		cmd.Dir, cmd.WaitDelay = module, 10*time.Second
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v\n%s", c.fixture, err, out)
		case c.want != "" && (!errors.As(err, &exit) || exit.ExitCode() != 100 || !strings.Contains(string(out), c.want)):
			t.Errorf("%s: %v\n%s", c.fixture, err, out)
		}
	}
}
