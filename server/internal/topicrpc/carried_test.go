package topicrpc

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/link/caller"
	"github.com/parley-chat/parley/server/topic/topictest"
)

// Over links a server serves topics, operators and dead letters: to other servers for one of its
// slots, to processes without slots for all. Dead letters are for processes that serve operators.
func TestCarriedServices(t *testing.T) {
	t.Parallel()
	c := topictest.NewCluster(t, 2)
	node := c.Start("one")
	t.Cleanup(c.Close)
	testkit.Eventually(t, "the slots", func() bool { return len(node.Services()) == 2 })
	p := &Module{cfg: ModuleConfig{Backend: &backend.Backend{Store: c.Store}, Clock: time.Now,
		Metrics: telemetry.NewMetrics(), Logger: slog.New(slog.DiscardHandler), Process: "one"},
		slots: node.SlotManager, streams: NewStreams(nil), sums: newSums()}
	h, err := p.Carried()
	testkit.Must(t, err)
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	operator, user := &caller.Caller{Principal: "ada", Operator: true}, &caller.Caller{Principal: "bob"}
	for _, tt := range []struct {
		call, body string
		by         *caller.Caller
		slot       string
		code       int
		says       string
	}{
		{"topic.v1.TopicAdminService/GetJobs", `{}`, operator, "", 200, "JOB_TRIM"},
		{"topic.v1.TopicAdminService/GetJobs", `{}`, operator, "1", 200, "JOB_TRIM"},
		{"topic.v1.TopicAdminService/GetJobs", `{}`, operator, "2", 503, "NO_OWNER"},
		{"topic.v1.TopicAdminService/GetJobs", `{}`, nil, "", 403, ""},
		{"topic.v1.TopicService/ListTopics", `{}`, user, "", 200, ""},
		{"topic.v1.BackfillService/GetBackfill", `{"topic":"t","group":"g"}`, operator, "", 404, "TOPIC_NOT_FOUND"},
		{"topic.v1.SubscriptionService/Heartbeat", `{"topic":"t","group":"g"}`, user, "", 403, "TOPIC_FORBIDDEN"},
		{"link.v1.LetterService/ScanLetters", `{"slot":1,"selection":{}}`, operator, "", 200, ""},
		{"link.v1.LetterService/ScanLetters", `{"slot":1,"selection":{}}`, user, "", 403, "TOPIC_FORBIDDEN"},
		{"link.v1.LetterService/ScanLetters", `{"slot":2,"selection":{}}`, operator, "", 400, "no slot 2"},
		{"link.v1.LetterService/ScanLetters", `{"slot":1}`, operator, "", 400, "selection"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/parley."+tt.call,
			strings.NewReader(tt.body))
		testkit.Must(t, err)
		r.Header.Set("Content-Type", "application/json")
		if tt.by != nil {
			testkit.Must(t, tt.by.Introduce(r.Header))
		}
		if tt.slot != "" {
			r.Header.Set("Parley-Slot", tt.slot)
		}
		res, err := s.Client().Do(r)
		testkit.Must(t, err)
		b, err := io.ReadAll(res.Body)
		testkit.Must(t, err)
		testkit.Must(t, res.Body.Close())
		if res.StatusCode != tt.code || !strings.Contains(string(b), tt.says) {
			t.Errorf("%s %s in slot %q: %d %s; want %d %s", tt.call, tt.body, tt.slot, res.StatusCode, b, tt.code, tt.says)
		}
	}
}
