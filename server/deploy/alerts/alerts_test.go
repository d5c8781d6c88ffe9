package alerts

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/telemetry"
)

// rule is an alert on how much a counter grew, or how high a gauge stands.
type rule struct {
	alert, severity string
	expr            string
	metric          string
	growth          bool
	above           float64
}

var shape = regexp.MustCompile(`^(?:sum|max)(?: by \(\w+\))? ?\((?:increase\((\w+)\[\d+m\]\)|(\w+))\) > (\d+)$`)

// rules reads those of a file. Their expressions have few shapes, so that they can
// be evaluated here.
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
		switch key {
		case "alert":
			all = append(all, rule{alert: value})
		case "severity":
			all[len(all)-1].severity = value
		case "expr":
			r := &all[len(all)-1]
			m := shape.FindStringSubmatch(value)
			if m == nil {
				t.Fatalf("%s: %s has another shape than this test can evaluate", r.alert, value)
			}
			r.expr, r.metric, r.growth = value, m[1]+m[2], m[1] != ""
			if r.above, err = strconv.ParseFloat(m[3], 64); err != nil {
				t.Fatal(err)
			}
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

// fires evaluates a rule between two scrapes.
func (r rule) fires(before, after map[string]float64) bool {
	var sum float64
	for name, v := range after {
		if base, _, _ := strings.Cut(name, "{"); base != r.metric {
			continue
		}
		if r.growth {
			v -= before[name]
		}
		sum += v
	}
	return sum > r.above
}

// L-172 to L-175: each alert exists, is silent in an hour in which people create
// chats and change members, and fires when what it is about happens.
func TestLifecycleAlerts(t *testing.T) {
	m := telemetry.NewMetrics()
	l := m.Lifecycle()
	var corrections, oldest float64
	m.Counter(telemetry.ReconciliationFixes, "Counts of members that were wrong.", func() float64 { return corrections })
	m.Gauge(telemetry.ReconcileOldest, "Age of the oldest group with pending members.", func() float64 { return oldest })

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
	oldest = 1
	clean := scrape(t, m)
	l.CreationRetried()
	for range 5 {
		l.CreationRetried()
	}
	l.PublishFailed("ChatCreated")
	corrections++
	oldest = 1000
	drill := scrape(t, m)

	want := map[string]string{
		"chat_creation_phase2_retries_high": "sev3", "kafka_lifecycle_publish_failures": "sev2",
		"chat_reconciliation_corrections": "sev3", "chat_creation_incomplete": "sev3",
	}
	for _, r := range rules(t, "lifecycle.yaml") {
		if want[r.alert] != r.severity {
			t.Errorf("%s is %q, not %q", r.alert, r.severity, want[r.alert])
		}
		delete(want, r.alert)
		if r.fires(start, clean) {
			t.Errorf("%s fires in a clean hour: %s", r.alert, r.expr)
		}
		if !r.fires(clean, drill) {
			t.Errorf("%s does not fire: %s", r.alert, r.expr)
		}
	}
	for name := range want {
		t.Errorf("no alert %s", name)
	}
}
