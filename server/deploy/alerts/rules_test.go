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

	kind   string // sum, max, min, quantile, absent, less, failing, slow
	metric string
	by     string        // label of the sum
	labels []string      // of the greatest or least value
	burn   burn          // of failing and slow
	growth time.Duration // range of an increase; 0: the value itself
	per    float64       // the increase is divided by it; 1 if it is not
	above  float64
	below  string // fires if the sum of metric is less than the greatest of this one
	young  bool   // what a young process counts is all new
}

// burn is how fast a share of bad calls may be used up: above in both windows, and with more
// than calls in the longer one.
type burn struct {
	procedure, bad, within string // bad: the codes of failures; within: the bound of a bucket
	short, long            time.Duration
	calls                  float64
}

// Terms of a share of bad calls in a window, the same in both of a rule.
const (
	failingTerm = `sum\(rate\((\w+)_count\{procedure="([\w./]+)",code=~"([\w|]+)"\}\[(\w+)\]\)\) / sum\(rate\((\w+)_count\{procedure="([\w./]+)"\}\[(\w+)\]\)\) > ([\d.]+)`
	slowTerm    = `1 - sum\(rate\((\w+)_bucket\{procedure="([\w./]+)",code="ok",le="([\d.]+)"\}\[(\w+)\]\)\) / sum\(rate\((\w+)_count\{procedure="([\w./]+)",code="ok"\}\[(\w+)\]\)\) > ([\d.]+)`
	callsTerm   = `sum\(increase\((\w+)_count\{procedure="([\w./]+)"\}\[(\w+)\]\)\) > (\d+)`
)

// shapes are those of expressions: a rule of another shape has no drill.
var shapes = map[string]*regexp.Regexp{
	"failing": regexp.MustCompile(`^` + failingTerm + ` and ` + failingTerm + ` and ` + callsTerm + `$`),
	"slow":    regexp.MustCompile(`^` + slowTerm + ` and ` + slowTerm + ` and ` + callsTerm + `$`),
	"extreme": regexp.MustCompile(`^(max|min) by \((\w+), (\w+)\) \((\w+)(?:\{job=~"parley\.\*"\})?\) ([<>]) (\d+)$`),
	"value":   regexp.MustCompile(`^(sum|max) ?\((\w+)\) > (\d+)$`),
	"growth": regexp.MustCompile(`^(sum|max)(?: by \((\w+)\) )?\(increase\((\w+)(?:\{cause!~"sought\|expired"\})?\[(\d+m)\]\)\)(?: / (\d+))? > (\d+)` +
		`(?: or sum(?: by \((\w+)\) )?\((\w+)(?:\{cause!~"sought\|expired"\})? and on \(instance, job\) time\(\) - process_start_time_seconds < (\d+)\)(?: / (\d+))? > (\d+))?$`),
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
	if m := match("extreme"); m != nil {
		r.kind, r.labels, r.metric, r.above = m[1], m[2:4], m[4], number(t, m[6])
		if (m[1] == "max") != (m[5] == ">") {
			t.Errorf("%s: %s", r.Alert, r.Expr)
		}
	} else if m := match("failing"); m != nil {
		r.parseBurn(t, "failing", m)
	} else if m := match("slow"); m != nil {
		r.parseBurn(t, "slow", m)
	} else if m := match("value"); m != nil {
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

// parseBurn takes over the terms of a share of bad calls, which must all be about the same calls.
func (r *rule) parseBurn(t *testing.T, kind string, m []string) {
	t.Helper()
	short, long, calls := m[1:9], m[9:17], m[17:21]
	for _, differ := range []bool{
		short[0] != short[4], short[1] != short[5], short[3] != short[6], long[3] != long[6], // the share's two halves
		short[0] != long[0], short[1] != long[1], short[2] != long[2], short[4] != long[4], short[5] != long[5],
		short[7] != long[7], calls[0] != long[0], calls[1] != long[1], calls[2] != long[3],
	} {
		if differ {
			t.Errorf("%s: its terms are about different calls: %s", r.Alert, r.Expr)
			break
		}
	}
	r.kind, r.metric, r.above = kind, short[0], number(t, short[7])
	r.burn = burn{procedure: short[1], short: span(t, short[3]), long: span(t, long[3]), calls: number(t, calls[3])}
	if kind == "failing" {
		r.burn.bad = short[2]
	} else {
		r.burn.within = short[2]
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
