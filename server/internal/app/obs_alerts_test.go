package app_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"go.yaml.in/yaml/v3"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// selector is a metric in an expression, with what it asks of labels; words are what else an
// expression has.
var (
	selector = regexp.MustCompile(`\b(up|parley_\w+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)(=~?)"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on) \(([\w, ]+)\)`)
)

// alertsGoBy checks every metric and label of the alert rules against what a running server
// exports; metrics of other programs against the table. The calls of the service promise must
// have been made: their series are there, with the buckets that the rules name.
func alertsGoBy(t *testing.T, e exposition) {
	t.Helper()
	labelsOf := map[string][]string{}
	for _, m := range shown {
		labelsOf[m.name] = strings.Fields(m.labels)
	}
	files := testkit.Value(filepath.Glob("../../deploy/alerts/*.yaml"))(t)
	alerts, promises := 0, 0
	for _, f := range files {
		var file struct {
			Groups []struct {
				Rules []struct{ Alert, Expr string }
			}
		}
		testkit.Must(t, yaml.Unmarshal(testkit.Value(os.ReadFile(f))(t), &file))
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				alerts++
				allowed := []string{"instance", "job", "le"}
				for _, m := range selector.FindAllStringSubmatch(r.Expr, -1) {
					name, known := baseOf(m[1], labelsOf)
					if !known {
						t.Errorf("%s: no program exports %s", r.Alert, m[1])
					}
					if shownHere, ok := e.labels[name]; ok && strings.Join(shownHere, " ") != strings.Join(labelsOf[name], " ") {
						t.Errorf("%s: %s has the labels %q", r.Alert, name, shownHere)
					}
					allowed = append(allowed, labelsOf[name]...)
					if m[2] != "" && m[1] != "up" {
						promises++
						e.selects(t, r.Alert, m[1], name, m[2])
					}
				}
				for _, by := range grouping.FindAllStringSubmatch(r.Expr, -1) {
					for _, label := range strings.Split(by[1], ", ") {
						if !slices.Contains(allowed, label) {
							t.Errorf("%s groups by %s, which its metric does not have", r.Alert, label)
						}
					}
				}
			}
		}
	}
	if alerts < 60 || promises < 50 {
		t.Errorf("%d alerts were read, with %d selectors", alerts, promises)
	}
}

// baseOf returns the metric of a series' name, and whether a program exports it.
func baseOf(name string, labelsOf map[string][]string) (string, bool) {
	if _, ok := labelsOf[name]; ok || name == "up" {
		return name, true
	}
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if base, ok := strings.CutSuffix(name, suffix); ok {
			if _, ok := labelsOf[base]; ok {
				return base, true
			}
		}
	}
	return name, false
}

// selects checks that a selector finds a series of a server on which the calls were made. The
// codes of failures are those that there are.
func (e exposition) selects(t *testing.T, alert, series, name, matchers string) {
	t.Helper()
	var want []string
	for _, m := range matcher.FindAllStringSubmatch(matchers, -1) {
		label, value := m[1], m[3]
		if label != "le" && !slices.Contains(e.labels[name], label) {
			t.Errorf("%s: %s has no label %s", alert, name, label)
		}
		if label == "code" && m[2] == "=~" {
			for _, code := range strings.Split(value, "|") {
				var known connect.Code
				if known.UnmarshalText([]byte(code)) != nil {
					t.Errorf("%s: there is no code %s", alert, code)
				}
			}
			continue
		}
		want = append(want, label+`="`+value+`"`)
	}
	for s := range e.series {
		rest, ok := strings.CutPrefix(s, series+"{")
		if ok && !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(rest, w) }) {
			return
		}
	}
	t.Errorf("%s: a server has no series %s{%s}", alert, series, matchers)
}
