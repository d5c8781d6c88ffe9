package telemetry

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/parley-chat/parley/server/infra/config"
)

func TestLogFormats(t *testing.T) {
	var out strings.Builder
	NewLogger(&out, false).Info("hello", "n", 1)
	if !strings.Contains(out.String(), "msg=hello n=1") {
		t.Fatalf("text: %s", out.String())
	}
	out.Reset()
	NewLogger(&out, true).Debug("not shown")
	NewLogger(&out, true).Warn("hello", "error", errors.New("broken"))
	var line struct{ Level, Msg, Error string }
	if err := json.Unmarshal([]byte(out.String()), &line); err != nil || line.Level != "WARN" || line.Msg != "hello" ||
		line.Error != "broken" {
		t.Fatalf("json: %s, %v", out.String(), err)
	}
}

// Nothing that is named like a secret is logged (S-38). Package config tests the type of
// secrets.
func TestSecretsAreNotLogged(t *testing.T) {
	const canary = "canary-4711"
	var out strings.Builder
	for _, asJSON := range []bool{false, true} {
		log := NewLogger(&out, asJSON)
		log.Info("typed", "s", config.Secret(canary), slog.Group("g", "s", config.Secret(canary)), "in",
			struct{ S config.Secret }{canary})
		for _, name := range []string{"authorization", "Authorization", "token", "password", "secret", "cookie", "otp",
			"content", "preview", "text"} {
			log.Info("by name", name, canary, slog.Group("request", name, "Bearer "+canary))
			log.With(name, canary).WithGroup("g").Info("before", name, canary)
		}
	}
	if strings.Contains(out.String(), canary) || !strings.Contains(out.String(), redacted) {
		t.Fatal(out.String())
	}
}

func TestMetrics(t *testing.T) {
	m := NewMetrics()
	m.Request("/parley.chat.v1.ChatService/GetChat", "ok", 3*time.Millisecond)
	m.Refused("expired")
	m.Gauge(StreamsOpen, "Open streams.", func() float64 { return 2 })
	m.Counter(StorePlans, "Plans committed.", func() float64 { return 3 })
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	body := rec.Body.String()
	for _, line := range []string{
		`parley_rpc_duration_seconds_count{code="ok",procedure="/parley.chat.v1.ChatService/GetChat"} 1`,
		`parley_auth_refused_total{reason="expired"} 1`, "parley_streams_open 2", "parley_store_plans_total 3",
		"go_goroutines ",
	} {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("no %s in\n%s", line, body)
		}
	}
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
