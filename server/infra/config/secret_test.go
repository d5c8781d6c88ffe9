package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A secret may stand in a file of its own, named in the environment or in the file of settings,
// and is what the file has now (S-40).
func TestSec_S_40_SecretsInFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	put("hunter2\n")
	settings := write(t, 0o600, "PARLEY_REDIS_PASSWORD_FILE="+path+"\n")
	for name, args := range map[string]struct{ args, env []string }{
		"environment": {nil, env("PARLEY_REDIS_PASSWORD_FILE=" + path)}, "file": {[]string{"--config", settings}, env()},
	} {
		s, _, err := read(Server, args.args, args.env)
		if err != nil || s.Redis.Password.Reveal() != "hunter2" {
			t.Fatalf("%s: %v", name, err)
		}
		all := fmt.Sprintf("%v %#v %s %q", s.Redis, s.Redis, s.Redis.Password, s.Redis.Password)
		if strings.Contains(all, path) {
			t.Errorf("%s: %s", name, all)
		}
		put("hunter3")
		if got := s.Redis.Password.Reveal(); got != "hunter3" {
			t.Errorf("%s: after it was replaced: %q", name, got)
		}
		put("hunter2\r\n")
	}
	s, _, err := read(Server, nil, env("PARLEY_REDIS_PASSWORD_FILE="+path))
	if err != nil || os.Remove(path) != nil || s.Redis.Password.Reveal() != "" {
		t.Errorf("a file that is not there: %v", err)
	}
	for text, why := range map[string]string{"": "empty", "\n": "empty", "a\nb": "one line", "a\x00": "one line",
		strings.Repeat("hunter", 1_000): "one line"} {
		put(text)
		if _, _, err := read(Server, nil, env("PARLEY_REDIS_PASSWORD_FILE="+path)); err == nil ||
			!strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "hunter") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	put("hunter2")
	for name, list := range map[string][]string{
		"both":       {"PARLEY_REDIS_PASSWORD_FILE=" + path, "PARLEY_REDIS_PASSWORD=x"},
		"absent":     {"PARLEY_REDIS_PASSWORD_FILE=" + path + "x"},
		"no secret":  {"PARLEY_LISTEN_FILE=" + path},
		"no setting": {"PARLEY_PASSWORD_FILE=" + path},
	} {
		if _, _, err := read(Server, nil, env(list...)); err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
