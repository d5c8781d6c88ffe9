package alerts

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/telemetry"
)

// all returns the rules of all files.
func all(t *testing.T) map[string][]rule {
	t.Helper()
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	out := map[string][]rule{}
	for _, f := range files {
		out[f] = rules(t, f)
	}
	return out
}

// metrics returns the names that package telemetry declares.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	files, err := filepath.Glob("../../telemetry/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for _, v := range spec.Values {
				if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if name, err := strconv.Unquote(lit.Value); err == nil {
						out[name] = true
					}
				}
			}
			return true
		})
	}
	return out
}

// Each alert has a name of its own, a severity, metrics that there are, and a runbook
// that speaks of it.
func TestAlerts(t *testing.T) {
	declared, names := metrics(t), map[string]bool{}
	for file, list := range all(t) {
		for _, r := range list {
			if names[r.alert] {
				t.Errorf("%s: %s is there twice", file, r.alert)
			}
			names[r.alert] = true
			if r.severity != "sev1" && r.severity != "sev2" && r.severity != "sev3" {
				t.Errorf("%s has severity %q", r.alert, r.severity)
			}
			for _, m := range []string{r.metric, r.below} {
				if m != "" && !declared[m] {
					t.Errorf("%s: there is no metric %s", r.alert, m)
				}
			}
			b, err := os.ReadFile(filepath.Join("../../..", r.runbook))
			if err != nil || !strings.HasPrefix(r.runbook, "server/deploy/runbooks/") {
				t.Errorf("%s has no runbook: %v", r.alert, err)
				continue
			}
			if !strings.Contains(string(b), "`"+r.alert+"`") {
				t.Errorf("%s does not speak of %s", r.runbook, r.alert)
			}
		}
	}
}

// The thresholds of the ADR (K-161 to K-166), in records, seconds, letters a minute,
// seconds, rebalances an hour and partitions.
func TestThresholds(t *testing.T) {
	want := map[string][2]float64{
		telemetry.FanoutLag: {10_000, 100_000}, telemetry.FanoutOldest: {300, 900}, telemetry.FanoutDead: {10, 100},
		telemetry.PublishTime: {0.5, 2}, telemetry.FanoutRebalances: {5, 20}, telemetry.KafkaUnderReplica: {0, 0},
	}
	have := map[string]map[float64]int{}
	for _, list := range all(t) {
		for _, r := range list {
			if have[r.metric] == nil {
				have[r.metric] = map[float64]int{}
			}
			if r.kind != "absent" {
				have[r.metric][r.above]++
			}
		}
	}
	for metric, levels := range want {
		n := 1
		if levels[0] == levels[1] {
			n = 2 // at once, and more urgent after a while
		}
		for _, level := range levels {
			if have[metric][level] != n {
				t.Errorf("%s > %g: %d alerts, not %d", metric, level, have[metric][level], n)
			}
		}
	}
}

// process is one that shows a metric, as the program does, whose value a drill sets.
type process struct {
	m     *telemetry.Metrics
	value map[string]float64
	took  func(time.Duration)
}

func newProcess(r rule) *process {
	p := &process{m: telemetry.NewMetrics(), value: map[string]float64{}}
	read := func(name string) func() float64 { return func() float64 { return p.value[name] } }
	switch {
	case r.kind == "quantile":
		p.took = p.m.Histogram(r.metric, "x", .005, .01, .025, .05, .1, .25, .5, 1, 2, 5, 10, 30)
	case r.growth:
		p.m.Counter(r.metric, "x", read(r.metric))
	default:
		p.m.Gauge(r.metric, "x", read(r.metric))
	}
	if r.below != "" {
		p.m.Gauge(r.below, "x", read(r.below))
	}
	return p
}

// K-167, and the same for the alerts that are ours: each fires one step beyond its
// threshold and neither at it nor one step before. There are two processes, of which
// one has nothing to tell; what is added up is spread over both.
func TestDrills(t *testing.T) {
	drilled := 0
	for file, list := range all(t) {
		for _, r := range list {
			if file == "lifecycle.yaml" && r.growth { // TestLifecycleAlerts, through the meters themselves
				continue
			}
			t.Run(r.alert, func(t *testing.T) {
				drilled++
				a, b := newProcess(r), newProcess(r)
				fires := func(change func()) bool {
					wa, wb := window{before: scrape(t, a.m)}, window{before: scrape(t, b.m)}
					change()
					wa.after, wb.after = scrape(t, a.m), scrape(t, b.m)
					return r.fires(wa, wb)
				}
				set := func(x, y float64) func() {
					return func() {
						if r.growth { // counters only grow
							a.value[r.metric] += x
							b.value[r.metric] += y
							return
						}
						a.value[r.metric], b.value[r.metric] = x, y
					}
				}
				expect := func(want bool, what string, change func()) {
					t.Helper()
					if got := fires(change); got != want {
						t.Errorf("%s: fires = %v: %s", what, got, r.expr)
					}
				}
				switch r.kind {
				case "sum", "max":
					if r.above > 0 {
						expect(false, "below", set(r.above-1, 0))
					}
					expect(false, "at it", set(r.above, 0))
					expect(true, "above", set(r.above+1, 0))
					if half := float64(int(r.above)/2 + 1); r.kind == "sum" {
						expect(true, "above together", set(half, half))
					} else if r.above > 1 {
						expect(false, "each below", set(half, half))
					}
				case "quantile":
					observe := func(slow time.Duration) func() {
						return func() {
							for n := range 100 {
								took := 10 * time.Millisecond
								if n < 2 {
									took = slow
								}
								a.took(took)
								b.took(took)
							}
						}
					}
					limit := time.Duration(r.above * float64(time.Second))
					expect(false, "below", observe(limit*9/10))
					expect(true, "above", observe(limit*3/2))
					expect(false, "again", func() { a.took(time.Millisecond) })
				case "less":
					a.value[r.below], b.value[r.below] = 8, 8
					expect(false, "all are held", set(5, 3))
					expect(true, "one is not", set(5, 2))
				case "absent":
					expect(false, "nothing to tell", set(0, 0))
					if empty := (window{after: map[string]float64{"up": 1}}); !r.fires(empty) {
						t.Error("does not fire")
					}
				}
			})
		}
	}
	if drilled < 25 {
		t.Fatalf("only %d alerts were drilled", drilled)
	}
}

func TestQuantile(t *testing.T) {
	// As Prometheus computes it: linear within the bucket.
	list := []bucket{{0.1, 50}, {0.5, 100}, {1, 100}}
	for q, want := range map[float64]float64{0.5: 0.1, 0.75: 0.3, 1: 0.5} {
		if got := quantile(q, list); fmt.Sprintf("%.6f", got) != fmt.Sprintf("%.6f", want) {
			t.Errorf("%g: %g, not %g", q, got, want)
		}
	}
}
