package alerts

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/telemetry"
)

// metrics returns the names that package telemetry declares.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	files, err := filepath.Glob("../../infra/telemetry/*.go")
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
			if r.burn.short > 0 && r.burn.short < 3*time.Minute {
				t.Errorf("%s: too short a window: %s", r.Alert, r.Expr)
			}
			if r.growth > 0 && r.above == 0 && !r.young {
				t.Errorf("%s does not see what was counted before the first scrape: %s", r.Alert, r.Expr)
			}
			if r.growth > 0 && r.growth < 3*time.Minute {
				t.Errorf("%s: a range of %s has too few scrapes, one a minute: %s", r.Alert, r.growth, r.Expr)
			}
			if names[r.Alert] {
				t.Errorf("%s: %s is there twice", file, r.Alert)
			}
			names[r.Alert] = true
			if !slices.Contains([]string{"sev1", "sev2", "sev3"}, r.Labels["severity"]) {
				t.Errorf("%s has severity %q", r.Alert, r.Labels["severity"])
			}
			for _, m := range []string{r.metric, r.below} {
				if m != "" && m != "up" && !declared[m] { // up is Prometheus's own
					t.Errorf("%s: there is no metric %s", r.Alert, m)
				}
			}
			b, err := os.ReadFile(filepath.Join("../../..", r.Annotations["runbook"]))
			if err != nil || !strings.HasPrefix(r.Annotations["runbook"], "server/deploy/runbooks/") {
				t.Errorf("%s has no runbook: %v", r.Alert, err)
				continue
			}
			if !strings.Contains(string(b), "`"+r.Alert+"`") {
				t.Errorf("%s does not speak of %s", r.Annotations["runbook"], r.Alert)
			}
		}
	}
}

// The thresholds of the ADR (K-161 to K-166, X-30), in records, seconds, dead letters a minute,
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
	if r := named(t, "fanout_lag_memberships_critical"); r.metric != telemetry.FanoutMembers || r.above != 240 {
		t.Errorf("%s", r.Expr)
	}
}

// How urgent the alerts of ADR-016 are (L-172 to L-175).
func TestSeverities(t *testing.T) {
	for name, severity := range map[string]string{
		"chat_creation_phase2_retries_high": "sev3", "kafka_lifecycle_publish_failures": "sev2",
		"chat_reconciliation_corrections": "sev3", "chat_creation_incomplete": "sev3", "chat_audit_late": "sev3",
	} {
		if r := named(t, name); r.Labels["severity"] != severity {
			t.Errorf("%s is %q, not %q", name, r.Labels["severity"], severity)
		}
	}
	if r := named(t, "chat_creation_phase2_retries_high"); r.metric != telemetry.CreationRetries || r.above != 5 ||
		r.growth != 5*time.Minute {
		t.Errorf("%s", r.Expr)
	}
}

// HQ-Q03, HQ-Q04, HQ-Q05, HQ-Q06, HQ-Q10, HQ-Q11, HQ-Q12, HQ-I05: what is alerted on of durable topics, and
// from which value on.
func TestAlertsOnTopics(t *testing.T) {
	for name, want := range map[string]struct {
		metric string
		above  float64
	}{
		"topic_trim_backlog": {telemetry.TopicTrimBacklog, 1_000_000}, "topic_trim_behind": {telemetry.TopicTrimBehind, 3},
		"topic_detection_failed": {telemetry.TopicDetectionFailed, 0}, "topic_job_slow": {telemetry.TopicJobTime, 10},
		"topic_overdue": {telemetry.TopicOverdue, 60}, "topic_full": {telemetry.TopicPublishesFull, 0},
		"topic_leases_overdue": {telemetry.TopicLeasesOverdue, 0}, "topic_stalled": {telemetry.GroupStalled, 0},
		"topic_push_failing":   {telemetry.GroupPushFailing, 0},
		"topic_completion_lag": {telemetry.GroupOldest, 60}, "topic_tracking_entries": {telemetry.TopicTracked, 1e9},
		"memory_used": {telemetry.MemoryUsed, 80}, "topic_zero_subscriptions": {telemetry.TopicUnsubscribed, 0},
		"topic_backfill_failed": {telemetry.BackfillsFailed, 0}, "topic_log_refused": {telemetry.TopicLogRefused, 10},
		"topic_log_removals_failed": {telemetry.TopicLogRemovals, 0}, "topic_released": {telemetry.TopicLedger, 0},
		"topic_dead_letters": {telemetry.TopicDeadLetters, 0},
	} {
		if r := named(t, name); r.metric != want.metric || r.above != want.above {
			t.Errorf("%s: %s", name, r.Expr)
		}
	}
}
