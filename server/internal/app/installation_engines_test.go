//go:build !windows

package app_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// engines are the real servers under an installation, started by .tools/engines, which can
// do to one of them what happens to servers. Their names are kafka-1 to kafka-3, dynamodb
// and redis.
type engines struct {
	t       testing.TB
	script  string
	brokers []string
}

// findEngines returns nil where the addresses are not those of engines that the script
// runs: then nothing may be killed.
func findEngines(t testing.TB, env map[string]string) *engines {
	t.Helper()
	script, err := filepath.Abs(filepath.Join("..", "..", "..", ".tools", "engines"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(script); err != nil {
		return nil
	}
	out, err := exec.Command(script, "env").Output()
	if err != nil {
		return nil
	}
	for name, value := range env {
		if !strings.Contains(string(out), "export "+name+"="+value+"\n") {
			return nil
		}
	}
	e := &engines{t: t, script: script}
	for i := range strings.Split(env["PARLEY_TEST_KAFKA"], ",") {
		e.brokers = append(e.brokers, fmt.Sprint("kafka-", i+1))
	}
	return e
}

// notRun says why faults of engines are left out, "" if they are not.
func (e *engines) notRun() string {
	switch {
	case e == nil:
		return "not run: PARLEY_TEST_KAFKA and the others are not as .tools/engines started them, which kills them"
	case len(e.brokers) < 3:
		return "not run: PARLEY_TEST_KAFKA has less than three brokers, .tools/engines up --brokers 3"
	default:
		return ""
	}
}

func (e *engines) do(verb string, names ...string) {
	e.t.Helper()
	if out, err := exec.Command(e.script, append([]string{verb}, names...)...).CombinedOutput(); err != nil {
		e.t.Fatalf("engines %s %v: %v\n%s", verb, names, err, out)
	}
}

// kill ends engines at once. Whatever becomes of the test, others find them running.
func (e *engines) kill(names ...string) {
	e.t.Helper()
	e.t.Cleanup(func() { e.do("start", names...) })
	e.do("kill", names...)
}

// start begins killed engines again at their addresses, and returns when they answer.
func (e *engines) start(names ...string) { e.t.Helper(); e.do("start", names...) }

// freeze has engines stand still until they are thawed.
func (e *engines) freeze(names ...string) {
	e.t.Helper()
	e.t.Cleanup(func() { e.do("thaw", names...) })
	e.do("freeze", names...)
}

func (e *engines) thaw(names ...string) { e.t.Helper(); e.do("thaw", names...) }
