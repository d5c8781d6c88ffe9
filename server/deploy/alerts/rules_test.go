package alerts

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// rule is an alert as operators load it, and what its expression is about.
type rule struct {
	Alert       string
	Expr        string
	For         string            `yaml:",omitempty"`
	Labels      map[string]string `yaml:",omitempty"`
	Annotations map[string]string `yaml:",omitempty"`

	kind   string // sum, max, quantile, absent, less
	metric string
	by     string        // label of the sum
	growth time.Duration // range of an increase; 0: the value itself
	per    float64       // the increase is divided by it; 1 if it is not
	above  float64
	below  string // fires if the sum of metric is less than the greatest of this one
	young  bool   // what a young process counts is all new
}

// shapes are those of expressions: a rule of another shape has no drill.
var shapes = map[string]*regexp.Regexp{
	"value": regexp.MustCompile(`^(sum|max) ?\((\w+)\) > (\d+)$`),
	"growth": regexp.MustCompile(`^(sum|max)(?: by \((\w+)\) )?\(increase\((\w+)\[(\d+m)\]\)\)(?: / (\d+))? > (\d+)` +
		`(?: or sum(?: by \((\w+)\) )?\((\w+) and on \(instance, job\) time\(\) - process_start_time_seconds < (\d+)\)(?: / (\d+))? > (\d+))?$`),
	"quantile": regexp.MustCompile(
		`^histogram_quantile\(0\.99, sum by \(le\) \(rate\((\w+)_bucket\[(\d+m)\]\)\)\) > ([\d.]+)$`),
	"absent": regexp.MustCompile(`^absent\((\w+)\)$`),
	"less":   regexp.MustCompile(`^sum\((\w+)\) < max\((\w+)\)$`),
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	if s == "" {
		return 1
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func span(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (r *rule) parse(t *testing.T) {
	t.Helper()
	match := func(shape string) []string { return shapes[shape].FindStringSubmatch(r.Expr) }
	r.per = 1
	if m := match("value"); m != nil {
		r.kind, r.metric, r.above = m[1], m[2], number(t, m[3])
	} else if m := match("growth"); m != nil {
		r.kind, r.by, r.metric, r.growth, r.per, r.above = m[1], m[2], m[3], span(t, m[4]), number(t, m[5]), number(t, m[6])
		if r.young = m[8] != ""; r.young &&
			(m[7] != m[2] || m[8] != m[3] || span(t, m[9]+"s") != r.growth || m[10] != m[5] || m[11] != m[6]) {
			t.Errorf("%s: its two halves differ: %s", r.Alert, r.Expr)
		}
	} else if m := match("quantile"); m != nil {
		r.kind, r.metric, r.growth, r.above = "quantile", m[1], span(t, m[2]), number(t, m[3])
	} else if m := match("absent"); m != nil {
		r.kind, r.metric = "absent", m[1]
	} else if m := match("less"); m != nil {
		r.kind, r.metric, r.below = "less", m[1], m[2]
	} else {
		t.Fatalf("%s: %s has another shape than the drills know", r.Alert, r.Expr)
	}
}

// wait is how long the condition must hold.
func (r *rule) wait(t *testing.T) time.Duration {
	t.Helper()
	if r.For == "" {
		return 0
	}
	return span(t, r.For)
}

// all returns the rules of all files.
func all(t *testing.T) map[string][]rule {
	t.Helper()
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	out := map[string][]rule{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Groups []struct{ Rules []rule }
		}
		if err := yaml.Unmarshal(b, &file); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				r.parse(t)
				out[f] = append(out[f], r)
			}
		}
		if n := strings.Count(string(b), "- alert: "); n != len(out[f]) || n == 0 {
			t.Fatalf("%s has %d alerts, of which %d were read", f, n, len(out[f]))
		}
	}
	return out
}

// named returns a rule.
func named(t *testing.T, name string) rule {
	t.Helper()
	for _, list := range all(t) {
		for _, r := range list {
			if r.Alert == name {
				return r
			}
		}
	}
	t.Fatalf("there is no alert %s", name)
	return rule{}
}
