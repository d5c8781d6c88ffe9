package alerts

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// Prometheus itself evaluates the rules, with its staleness, its waits and its way of
// computing growth: promtool, which .tools/engines fetches.

// scrapes are the intervals at which operators scrape.
var scrapes = []time.Duration{15 * time.Second, 30 * time.Second, time.Minute}

// evaluate is how often the rules are evaluated.
const evaluate = 15 * time.Second

func promtool(t *testing.T) string {
	t.Helper()
	path := os.Getenv("PARLEY_TEST_PROMTOOL")
	if path == "" {
		t.Skip("not run: PARLEY_TEST_PROMTOOL is not set")
	}
	return path
}

// series is one process's metric over time; NaN is no sample.
type series struct {
	name string // with labels
	at   func(time.Duration) (value float64, there bool)
}

func (s series) values(every, end time.Duration) string {
	var b strings.Builder
	there := false
	for now := time.Duration(0); now <= end; now += every {
		was := there
		var v float64
		if v, there = s.at(now); there {
			b.WriteString(strconv.FormatFloat(v, 'g', -1, 64) + " ")
		} else if was {
			b.WriteString("stale ") // as Prometheus notes of a target that does not answer
		} else {
			b.WriteString("_ ")
		}
	}
	return b.String()
}

// check is whether an alert fires at a time.
type check struct {
	at    time.Duration
	fires bool
	label string // of the sum by one, or the second one of an extreme
}

// scenario is what processes show, and what is expected of one rule.
type scenario struct {
	name   string
	rule   rule
	series []series
	checks []check
}

// promFile is a file of tests for promtool.
type promFile struct {
	RuleFiles          []string   `yaml:"rule_files"`
	EvaluationInterval string     `yaml:"evaluation_interval"`
	Tests              []promTest `yaml:"tests"`
}

type promTest struct {
	Name        string              `yaml:"name"`
	Interval    string              `yaml:"interval"`
	InputSeries []map[string]string `yaml:"input_series"`
	Alerts      []promCheck         `yaml:"alert_rule_test"`
}

type promCheck struct {
	At    string      `yaml:"eval_time"`
	Alert string      `yaml:"alertname"`
	Want  []promAlert `yaml:"exp_alerts"`
}

type promAlert struct {
	Labels      map[string]string `yaml:"exp_labels"`
	Annotations map[string]string `yaml:"exp_annotations"`
}

// fires is the alert of a rule.
func (c check) alert(r rule) promAlert {
	a := promAlert{Labels: maps.Clone(r.Labels), Annotations: maps.Clone(r.Annotations)}
	if r.by != "" {
		a.Labels[r.by] = c.label
	}
	if len(r.labels) > 0 {
		a.Labels[r.labels[0]], a.Labels[r.labels[1]] = "a:8080", c.label
		for k, v := range a.Annotations {
			a.Annotations[k] = strings.NewReplacer("{{ $labels."+r.labels[0]+" }}", "a:8080", "{{ $labels."+r.labels[1]+" }}",
				c.label).Replace(v)
		}
	}
	for k, v := range a.Annotations {
		a.Annotations[k] = strings.ReplaceAll(v, "{{ $labels."+r.by+" }}", c.label)
	}
	return a
}

// drill has promtool evaluate scenarios of one rule. The long form scrapes each at all intervals, the plain form at one
// of them in turn, so that every rule sees several.
func drill(t *testing.T, list ...scenario) {
	t.Helper()
	tool, dir := promtool(t), t.TempDir()
	rules, err := yaml.Marshal(map[string]any{
		"groups": []any{map[string]any{"name": "drill", "rules": []rule{list[0].rule}}}})
	if err != nil {
		t.Fatal(err)
	}
	interval, intervals := evaluate, scrapes
	if long := list[0].rule.burn.long; long > 0 {
		interval = time.Minute
		if long > time.Hour { // a short interval makes no difference to it, and takes a minute of processor time
			intervals = []time.Duration{slowest}
		}
	}
	file := promFile{RuleFiles: []string{"rules.yaml"}, EvaluationInterval: interval.String()}
	for i, s := range list {
		for n, every := range intervals {
			if turn := len(s.rule.Alert) + i; !testkit.Long() && n != turn%len(intervals) {
				continue
			}
			test := promTest{Name: fmt.Sprintf("%s, scraped every %s", s.name, every), Interval: every.String()}
			end := slices.MaxFunc(s.checks, func(a, b check) int { return int(a.at - b.at) }).at
			for _, one := range s.series {
				test.InputSeries = append(test.InputSeries, map[string]string{"series": one.name, "values": one.values(every, end)})
			}
			for _, c := range s.checks {
				pc := promCheck{At: c.at.String(), Alert: s.rule.Alert}
				if c.fires {
					pc.Want = []promAlert{c.alert(s.rule)}
				}
				test.Alerts = append(test.Alerts, pc)
			}
			file.Tests = append(file.Tests, test)
		}
	}
	tests, err := yaml.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"rules.yaml": rules, "tests.yaml": tests} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), tool, "test", "rules", "tests.yaml")
	cmd.Dir = dir
	// As many run at once as there are processors, each for a second or less: the collector would take a third of it.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=400")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s\n%s", err, list[0].rule.Expr,
			regexp.MustCompile(`Annotations:\{.*?\}`).ReplaceAllString(string(out), ""))
	}
}

// The files are as Prometheus wants them.
func TestPromtoolTakesTheRules(t *testing.T) {
	tool := promtool(t)
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	check := exec.CommandContext(t.Context(), tool, append([]string{"check", "rules"}, files...)...)
	if out, err := check.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
