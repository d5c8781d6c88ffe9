package alerts

import (
	"bufio"
	"cmp"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/telemetry"
)

// rule is an alert. Its expression is one of few shapes, so that it can be evaluated
// here.
type rule struct {
	alert, severity, runbook, expr string

	kind   string // sum, max, quantile, absent
	metric string
	growth bool
	above  float64
	below  string // fires if metric's value is less than the greatest of this one
}

var shapes = map[string]*regexp.Regexp{
	"value":    regexp.MustCompile(`^(sum|max)(?: by \(\w+\))? ?\((?:increase\((\w+)\[\d+m\]\)|(\w+))\) > (\d+)$`),
	"quantile": regexp.MustCompile(`^histogram_quantile\(0\.99, sum by \(le\) \(rate\((\w+)_bucket\[\d+m\]\)\)\) > ([\d.]+)$`),
	"absent":   regexp.MustCompile(`^absent\((\w+)\)$`),
	"less":     regexp.MustCompile(`^sum\((\w+)\) < max\((\w+)\)$`),
}

func (r *rule) parse(t *testing.T, expr string) {
	t.Helper()
	number := func(s string) float64 {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	r.expr = expr
	if m := shapes["value"].FindStringSubmatch(expr); m != nil {
		r.kind, r.metric, r.growth, r.above = m[1], m[2]+m[3], m[2] != "", number(m[4])
	} else if m := shapes["quantile"].FindStringSubmatch(expr); m != nil {
		r.kind, r.metric, r.above = "quantile", m[1], number(m[2])
	} else if m := shapes["absent"].FindStringSubmatch(expr); m != nil {
		r.kind, r.metric = "absent", m[1]
	} else if m := shapes["less"].FindStringSubmatch(expr); m != nil {
		r.kind, r.metric, r.below = "less", m[1], m[2]
	} else {
		t.Fatalf("%s: %s has another shape than this test can evaluate", r.alert, expr)
	}
}

// rules reads those of a file.
func rules(t *testing.T, file string) []rule {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []rule
	for scan := bufio.NewScanner(strings.NewReader(string(b))); scan.Scan(); {
		key, value, ok := strings.Cut(strings.TrimLeft(scan.Text(), " -"), ": ")
		if !ok {
			continue
		}
		if key == "alert" {
			all = append(all, rule{alert: value})
			continue
		}
		if len(all) == 0 {
			continue
		}
		r := &all[len(all)-1]
		switch key {
		case "severity":
			r.severity = value
		case "runbook":
			r.runbook = value
		case "expr":
			r.parse(t, value)
		}
	}
	return all
}

// scrape returns all series by name and labels.
func scrape(t *testing.T, m *telemetry.Metrics) map[string]float64 {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	series := map[string]float64{}
	for scan := bufio.NewScanner(rec.Body); scan.Scan(); {
		name, value, ok := strings.Cut(scan.Text(), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue // a label with a space in it, which no metric of these has
		}
		series[name] = v
	}
	return series
}

// window is what one process said at the beginning and at the end of a rule's window.
type window struct{ before, after map[string]float64 }

// named reports whether a series is of a metric.
func named(series, metric string) bool {
	base, _, _ := strings.Cut(series, "{")
	return base == metric
}

// fires evaluates a rule over the windows of all processes, as Prometheus would.
func (r rule) fires(processes ...window) bool {
	var sum, most, limit float64
	seen := false
	var buckets []bucket
	for _, p := range processes {
		for name, v := range p.after {
			if r.below != "" && named(name, r.below) {
				limit = max(limit, v)
			}
			if r.kind == "quantile" && named(name, r.metric+"_bucket") {
				buckets = add(buckets, name, v-p.before[name])
			}
			if !named(name, r.metric) {
				continue
			}
			if seen = true; r.growth {
				v -= p.before[name]
			}
			sum, most = sum+v, max(most, v)
		}
	}
	switch r.kind {
	case "sum":
		return seen && sum > r.above
	case "max":
		return seen && most > r.above
	case "less":
		return seen && sum < limit
	case "absent":
		return !seen
	default:
		return quantile(0.99, buckets) > r.above
	}
}

// bucket of a histogram, cumulative.
type bucket struct{ le, count float64 }

func add(list []bucket, series string, count float64) []bucket {
	_, le, _ := strings.Cut(series, `le="`)
	bound, err := strconv.ParseFloat(strings.TrimSuffix(le, `"}`), 64)
	if err != nil {
		bound = math.Inf(1)
	}
	for i := range list {
		if list[i].le == bound {
			list[i].count += count
			return list
		}
	}
	list = append(list, bucket{bound, count})
	slices.SortFunc(list, func(a, b bucket) int { return cmp.Compare(a.le, b.le) })
	return list
}

// quantile interpolates within a bucket, as Prometheus does.
func quantile(q float64, list []bucket) float64 {
	if len(list) == 0 || list[len(list)-1].count == 0 {
		return math.NaN()
	}
	rank := q * list[len(list)-1].count
	for i, b := range list {
		if b.count < rank {
			continue
		}
		var low bucket
		if i > 0 {
			low = list[i-1]
		}
		if math.IsInf(b.le, 1) {
			return low.le
		}
		return low.le + (b.le-low.le)*(rank-low.count)/(b.count-low.count)
	}
	return math.NaN()
}

// L-172 to L-175: each alert exists, is silent in an hour in which people create
// chats and change members, and fires when what it is about happens.
func TestLifecycleAlerts(t *testing.T) {
	m := telemetry.NewMetrics()
	l := m.Lifecycle()
	var corrections, oldest, audit float64
	m.Counter(telemetry.ReconciliationFixes, "Counts of members that were wrong.", func() float64 { return corrections })
	m.Gauge(telemetry.ReconcileOldest, "Age of the oldest group with pending members.", func() float64 { return oldest })
	m.Gauge(telemetry.ReconcileAudit, "Age of the audit's oldest look at a chat.", func() float64 { return audit })

	start := scrape(t, m)
	for range 1000 {
		l.ChatCreated("group")
		l.CreationTook("group", telemetry.PhaseChat, time.Millisecond)
		l.CreationTook("group", telemetry.PhaseMembers, time.Millisecond)
		l.MembershipChanged("added", time.Millisecond)
		l.DirectAsked(true)
	}
	for range 5 { // two processes may meet
		l.CreationRetried()
	}
	oldest, audit = 1, 2400
	clean := scrape(t, m)
	l.CreationRetried()
	for range 5 {
		l.CreationRetried()
	}
	l.PublishFailed("ChatCreated")
	corrections++
	oldest, audit = 1000, 3700
	drill := scrape(t, m)

	want := map[string]string{
		"chat_creation_phase2_retries_high": "sev3", "kafka_lifecycle_publish_failures": "sev2",
		"chat_reconciliation_corrections": "sev3", "chat_creation_incomplete": "sev3", "chat_audit_late": "sev3",
	}
	for _, r := range rules(t, "lifecycle.yaml") {
		if want[r.alert] != r.severity {
			t.Errorf("%s is %q, not %q", r.alert, r.severity, want[r.alert])
		}
		delete(want, r.alert)
		if r.fires(window{start, clean}) {
			t.Errorf("%s fires in a clean hour: %s", r.alert, r.expr)
		}
		if !r.fires(window{clean, drill}) {
			t.Errorf("%s does not fire: %s", r.alert, r.expr)
		}
	}
	for name := range want {
		t.Errorf("no alert %s", name)
	}
}
