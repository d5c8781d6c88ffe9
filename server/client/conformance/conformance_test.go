package conformance_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/client/conformance"
	"github.com/parley-chat/parley/server/internal/racetest"
)

func set(t *testing.T) []*conformance.Scenario {
	t.Helper()
	var list []*conformance.Scenario
	for _, name := range []string{conformance.Scripted, conformance.Explored} {
		part, err := conformance.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, part...)
	}
	return list
}

// The reference client passes every scenario.
func TestScenarios(t *testing.T) {
	list, names := set(t), map[string]bool{}
	for _, s := range list {
		if names[s.Name] || s.Name == "" || len(s.Steps) == 0 {
			t.Errorf("scenario %q stands twice, or is empty", s.Name)
		}
		names[s.Name] = true
		if err := conformance.Play(s, conformance.Mistake{}); err != nil {
			t.Error(err)
		}
	}
	if len(list) < 300 {
		t.Errorf("%d scenarios, fewer than 300", len(list))
	}
}

// What is written by hand is what the scripts do. PARLEY_CONFORMANCE=update writes it.
func TestScriptedScenarios(t *testing.T) {
	list := scripts(t)
	name := filepath.Join(t.TempDir(), "scripted.jsonl")
	if os.Getenv("PARLEY_CONFORMANCE") == "update" {
		name = conformance.Scripted
	}
	if err := conformance.Write(name, list); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(conformance.Scripted)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the scripts do something else: PARLEY_CONFORMANCE=update go test ./server/client/conformance")
	}
}

// A client with any of the mistakes does not pass: each stands for a rule that the set asks
// for, and the page for those who write clients has the rule.
func TestMistakesAreCaught(t *testing.T) {
	racetest.SkipSerial(t)
	page, err := os.ReadFile("../../docs/write-a-client.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(page)), " ")
	list := set(t)
	for _, r := range rules() {
		caught := ""
		for _, s := range list {
			if err := conformance.Play(s, r.mistake); err != nil {
				caught = err.Error()
				break
			}
		}
		if caught == "" {
			t.Errorf("nobody notices a client that breaks the rule: %s", r.rule)
		}
		if !strings.Contains(text, r.page) {
			t.Errorf("the page does not have: %s", r.page)
		}
	}
}

// What is wrong with a scenario is said.
func TestScenariosThatAreWrong(t *testing.T) {
	for name, c := range map[string]struct {
		steps []conformance.Step
		says  string
	}{
		"a call that was not made": {[]conformance.Step{{Do: []conformance.Input{{Do: "result", Call: 7}}}}, "no call 7"},
		"an unknown input":         {[]conformance.Step{{Do: []conformance.Input{{Do: "dance"}}}}, "no call 0"},
		"calls that are missing":   {[]conformance.Step{{}}, "call sync"},
	} {
		err := conformance.Play(&conformance.Scenario{Name: name, User: "ann", Steps: c.steps}, conformance.Mistake{})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
