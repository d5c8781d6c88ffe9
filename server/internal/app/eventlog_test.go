package app_test

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	analyticsv1 "github.com/parley-chat/parley/gen/parley/analytics/v1"
	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/lag"
)

// smallLog is a server with an event log of 1 MiB.
type smallLog struct {
	*benchFixture
	t *testing.T
}

func newSmallLog(t *testing.T) *smallLog {
	t.Helper()
	r := &benchFixture{b: t, ctx: t.Context(), dir: t.TempDir()}
	r.p = launch(t, r.dir, "127.0.0.1:0", "--event-log-megabytes", "1")
	r.readKey()
	r.user("bob", true)
	r.user("carol", true)
	return &smallLog{r, t}
}

// span returns the records that there are of a topic, and how many were trimmed.
func (s *smallLog) span(topic string) (end, trimmed int64) {
	s.t.Helper()
	spans, err := lag.Spans(s.ctx, s.p.kafka, topic, asReader(s.t, s.dir)...)
	testkit.Must(s.t, err)
	for _, p := range spans {
		end, trimmed = end+p.To, trimmed+p.From
	}
	return end, trimmed
}

// publishes reports whether the events of a new message come to the log.
func (s *smallLog) publishes(u *user, chat string) {
	s.t.Helper()
	before, _ := s.span("messages.persisted")
	s.send(u, chat, "published?")
	testkit.Eventually(s.t, "a message comes to the log", func() bool {
		now, _ := s.span("messages.persisted")
		return now > before
	})
}

func noise(n int) string {
	b := make([]byte, n*3/4)
	_, _ = rand.Read(b)
	return base64.StdEncoding.EncodeToString(b)
}

// Search events have a share of their own. Beyond it they are refused, with a reason and a
// count, as long as none is a minute old; events of chats are published all the time.
func TestSearchEventsBeyondTheirShare(t *testing.T) {
	t.Parallel()
	s := newSmallLog(t)
	u := s.user("ann", true)
	chat := s.group(u, "carol")
	c := newAnalytics(t, s.dir, s.p.addr, "alice")
	record := func() error {
		var events []*analyticsv1.SearchEvent
		for range 10 {
			events = append(events, &analyticsv1.SearchEvent{Event: &analyticsv1.SearchEvent_AcImpression{
				AcImpression: &searchv1.AcImpression{SearchId: "s", Suggestions: []string{noise(200), noise(200), noise(200)}}}})
		}
		_, err := c.RecordBatch(s.ctx, &analyticsv1.RecordBatchRequest{Events: events})
		return err
	}
	var refusal error
	testkit.Eventually(t, "search events are refused", func() bool {
		for range 20 {
			if refusal = record(); refusal != nil {
				return true
			}
		}
		return false
	})
	var e *connect.Error
	if !errors.As(refusal, &e) || e.Code() != connect.CodeResourceExhausted ||
		reasonOf(e) != "SEARCH_LOG_FULL" {
		t.Fatal(refusal)
	}
	for range 3 {
		s.publishes(u, chat)
	}
	m := scraped(s.ctx, t, s.p.addr)
	if n := m.series["parley_search_requests_log_full_total"]; n < 1 {
		t.Errorf("counted: %v", n)
	}
	testkit.Eventually(t, "the server logs it", func() bool {
		return strings.Contains(s.p.log.String(), "search events exceed their share")
	})
	if _, trimmed := s.span("ac_impression_v1"); trimmed != 0 {
		t.Errorf("%d search events of the last minute were trimmed", trimmed)
	}
}

// A setting that sends search events to a topic of other records is refused in one line, and
// nothing is written.
func TestSearchTopicsOfOthersAreRefused(t *testing.T) {
	for _, topic := range []string{"messages.persisted", "dead_letters", "search_click_v1.dlq", "parley.topics.state"} {
		dir := filepath.Join(t.TempDir(), "data")
		code, out, errs := run(t.Context(), nil, "--data-dir", dir, "--listen", "127.0.0.1:0", "--search-topics",
			"search_click="+topic)
		if code == 0 || out != "" || strings.Count(errs, "\n") != 1 ||
			!strings.Contains(errs, "search-topics: search_click: ") {
			t.Errorf("%s: exit code %d\n%s%s", topic, code, out, errs)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the data directory exists: %v", topic, err)
		}
	}
}
