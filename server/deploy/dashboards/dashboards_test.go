package dashboards

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

type dashboard struct {
	UID    string
	Panels []struct {
		ID                       int
		Title, Description, Type string
		GridPos                  struct{ H, W, X, Y int }
		FieldConfig              struct{ Defaults struct{ Unit string } }
		Targets                  []struct{ Expr, LegendFormat string }
	}
}

// Panels show metrics that there are, each in a place of its own and in a unit, and
// point to runbooks that there are.
func TestDashboard(t *testing.T) {
	for file, panels := range map[string]int{"parley.json": 15, "topics.json": 10} {
		t.Run(file, func(t *testing.T) { check(t, file, panels) })
	}
}

func check(t *testing.T, file string, panels int) {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil || d.UID == "" || len(d.Panels) < panels {
		t.Fatal(len(d.Panels), err)
	}
	var names strings.Builder
	files, err := filepath.Glob("../../infra/telemetry/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		names.Write(b)
	}
	metric := regexp.MustCompile(`\b(?:parley|chat|kafka|membership|direct)_[a-z0-9_]+`)
	runbook := regexp.MustCompile(`[a-z-]+\.md`)
	taken := map[[2]int]bool{}
	for _, p := range d.Panels {
		at := [2]int{p.GridPos.X, p.GridPos.Y}
		if p.Title == "" || p.Type == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || taken[at] ||
			p.GridPos.W*p.GridPos.H == 0 {
			t.Errorf("panel %d %q is incomplete, or in another's place", p.ID, p.Title)
		}
		taken[at] = true
		for _, r := range runbook.FindAllString(p.Description, -1) {
			if _, err := os.Stat(filepath.Join("..", "runbooks", r)); err != nil {
				t.Errorf("%s: %v", p.Title, err)
			}
		}
		for _, target := range p.Targets {
			found := metric.FindAllString(target.Expr, -1)
			if len(found) == 0 || target.LegendFormat == "" {
				t.Errorf("%s shows nothing: %s", p.Title, target.Expr)
			}
			for _, m := range found {
				m = strings.TrimSuffix(strings.TrimSuffix(m, "_bucket"), "_count")
				if !strings.Contains(names.String(), `"`+m+`"`) {
					t.Errorf("%s: there is no metric %s", p.Title, m)
				}
			}
		}
	}
}
