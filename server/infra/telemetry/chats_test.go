package telemetry

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// The metrics have the names and labels that alerts go by, and counters exist before they
// count (L-164, L-165, L-166, L-167, L-168, L-169, L-170, L-171).
func TestChatMetrics(t *testing.T) {
	m := NewMetrics()
	l := m.Chats()
	m.Counter(ReconciliationFixes, "Counts of members that were wrong.", func() float64 { return 0 })
	body := func() string {
		rec := httptest.NewRecorder()
		m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
		return rec.Body.String()
	}
	has := func(lines ...string) {
		t.Helper()
		text := body()
		for _, line := range lines {
			if !strings.Contains(text, "\n"+line+"\n") {
				t.Errorf("no %s in\n%s", line, text)
			}
		}
	}
	has(`parley_chat_created_total{chat_type="group"} 0`, `parley_membership_mutation_total{change_type="role_changed"} 0`,
		`parley_direct_chat_dedup_total{result="existing"} 0`,
		`parley_chat_creation_phase2_retries_total 0`, `parley_chat_reconciliation_corrections_total 0`,
		`parley_kafka_lifecycle_publish_failures_total{event_type="ChatCreated"} 0`)
	l.ChatCreated("direct")
	l.CreationTook("group", PhaseMembers, 3*time.Millisecond)
	l.MembershipChanged("added", time.Millisecond)
	l.DirectAsked(false)
	l.DirectAsked(true)
	l.CreationRetried()
	l.PublishFailed("MembershipChanged")
	l.PublishFailed("MessagePersisted")
	has(`parley_chat_created_total{chat_type="direct"} 1`,
		`parley_chat_creation_duration_seconds_count{chat_type="group",phase="2"} 1`,
		`parley_membership_mutation_total{change_type="added"} 1`,
		`parley_membership_mutation_duration_seconds_count{change_type="added"} 1`,
		`parley_direct_chat_dedup_total{result="created"} 1`, `parley_direct_chat_dedup_total{result="existing"} 1`,
		`parley_chat_creation_phase2_retries_total 1`,
		`parley_kafka_lifecycle_publish_failures_total{event_type="MembershipChanged"} 1`)
	if strings.Contains(body(), `parley_kafka_lifecycle_publish_failures_total{event_type="MessagePersisted"}`) {
		t.Error("messages are no part of the lifecycle")
	}
	problems, err := promlint.New(strings.NewReader(body())).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
