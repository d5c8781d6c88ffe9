package observe

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/store/lease"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/relay/partitioncount"
)

func scrape(m *telemetry.Metrics) string {
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	return rec.Body.String()
}

// L-165: the phase kafka of a creation is fed by the relay, by kind of chat.
func TestCreatedFeedsThePhaseOfTheLog(t *testing.T) {
	m := telemetry.NewMetrics()
	created := Created(m.Chats())
	created(&eventv1.ChatCreated{ChatType: eventv1.ChatType_CHAT_TYPE_GROUP}, 30*time.Millisecond)
	created(&eventv1.ChatCreated{ChatType: eventv1.ChatType_CHAT_TYPE_GROUP}, 70*time.Second)
	created(&eventv1.ChatCreated{ChatType: eventv1.ChatType_CHAT_TYPE_DIRECT}, time.Millisecond)
	text := scrape(m)
	for _, want := range []string{
		`parley_chat_creation_duration_seconds_bucket{chat_type="group",phase="kafka",le="0.05"} 1`,
		`parley_chat_creation_duration_seconds_count{chat_type="group",phase="kafka"} 2`,
		`parley_chat_creation_duration_seconds_count{chat_type="direct",phase="kafka"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
}

// A relay's counters have their names from the start, before anything has happened.
func TestRelayMetrics(t *testing.T) {
	m := telemetry.NewMetrics()
	Relay(m, &relay.Set{}, &lease.Manager{}, &partitioncount.Watch{})
	text := scrape(m)
	for _, name := range []string{
		telemetry.RelayPublished, telemetry.RelayFailures, telemetry.RelayDropped, telemetry.RelayPoisoned,
		telemetry.RelayBacklog, telemetry.RelayOldest,
		telemetry.RelaySlots, telemetry.RelaySlotsLost,
	} {
		if !strings.Contains(text, "\n"+name+" 0\n") {
			t.Errorf("%s is missing", name)
		}
	}
}

// The age of waiting records includes those in a later version of their topic.
func TestOldestOfAllVersions(t *testing.T) {
	s := consume.Stats{OldestOf: map[string]time.Duration{
		"memberships.changed": time.Second, "memberships.changed.v2": 3 * time.Minute, "memberships.changed.v3": time.Minute,
		"messages.persisted": time.Hour, "messages.persisted.v2": time.Hour, "memberships.changed.vX": time.Hour,
	}}
	if age := oldestOf(s, "memberships.changed"); age != 3*time.Minute {
		t.Errorf("%v, not 3 minutes", age)
	}
	if age := oldestOf(s, "chats.created"); age != 0 {
		t.Errorf("%v of a topic where nothing waits", age)
	}
}

// Each topic of search events has its own age, from the start on.
func TestSearchWaiting(t *testing.T) {
	m := telemetry.NewMetrics()
	Search(m, &relay.Set{}, []string{"search_click_v1", "clicks"}, func() int64 { return 0 })
	text := scrape(m)
	for _, want := range []string{`{topic="search_click_v1"} 0`, `{topic="clicks"} 0`} {
		if !strings.Contains(text, "\nparley_search_relay_waiting_seconds"+want+"\n") {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
}
