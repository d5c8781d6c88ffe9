package app_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	analyticsv1 "github.com/parley-chat/parley/gen/parley/analytics/v1"
	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/testkit"
)

// smallLog is a server with an event log of 1 MiB.
type smallLog struct {
	*harness
	t *testing.T
}

func newSmallLog(t *testing.T) *smallLog {
	t.Helper()
	r := &harness{b: t, ctx: t.Context(), dir: t.TempDir()}
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

// Events go beyond the cap of the embedded log in a topic that fanout and the projector read and,
// with PARLEY_TEST_LONG=1, in one that only fanout reads: Parley's own groups read what they read,
// what all readers of a topic have read is trimmed, and publishing continues. Package kafka drives
// every topic.
func TestEventsOfChatsBeyondTheCap(t *testing.T) {
	t.Parallel()
	s := newSmallLog(t)
	s.goesBeyondTheCap("messages.persisted", func(u *user, chat string) error {
		s.send(u, chat, noise(8_000))
		return nil
	})
	if os.Getenv("PARLEY_TEST_LONG") != "1" {
		return // small events take half a minute of a processor
	}
	s.goesBeyondTheCap("memberships.changed", func(u *user, chat string) error {
		if _, err := u.chats.AddMember(s.ctx, &chatv1.AddMemberRequest{ChatId: chat, UserId: "bob"}); err != nil {
			return err
		}
		_, err := u.chats.RemoveMember(s.ctx, &chatv1.RemoveMemberRequest{ChatId: chat, UserId: "bob"})
		return err
	})
}

// goesBeyondTheCap has eight users call produce until records of the topic are trimmed, which happens
// now and then: they are no faster than the cap needs.
func (s *smallLog) goesBeyondTheCap(topic string, produce func(u *user, chat string) error) {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	var working sync.WaitGroup
	for i := range 8 {
		u := s.user(fmt.Sprint(strings.ReplaceAll(topic, ".", "-"), i), i%2 == 0)
		chat := s.group(u, "carol")
		working.Go(func() {
			for ctx.Err() == nil {
				if err := produce(u, chat); err != nil {
					s.t.Errorf("%s: %v", topic, err)
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	testkit.Eventually(s.t, topic+" is trimmed", func() bool {
		_, trimmed := s.span(topic)
		return trimmed > 0 || s.t.Failed()
	})
	stop()
	working.Wait()
	u := s.user("ann", true)
	s.publishes(u, s.group(u, "carol"))
}

// Search events have a share of their own. Beyond it they are refused, with a reason and a
// count, until the oldest are a minute old and are trimmed; events of chats are published all
// the time.
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
	if m.series["parley_search_requests_log_full_total"] < 1 || m.series["parley_log_full"] != 0 {
		t.Errorf("counted: %v, full for chats: %v", m.series["parley_search_requests_log_full_total"],
			m.series["parley_log_full"])
	}
	testkit.Eventually(t, "the server logs it", func() bool {
		return strings.Contains(s.p.log.String(), "search events exceed their share")
	})
	if _, trimmed := s.span("ac_impression_v1"); trimmed != 0 {
		t.Errorf("%d search events of the last minute were trimmed", trimmed)
	}
	files := testkit.Value(filepath.Glob(filepath.Join(s.dir, "log", "partitions", "ac_impression_v1-*", "*.dat")))(t)
	at := time.Now().Add(-2 * time.Minute)
	for _, f := range files {
		testkit.Must(t, os.Chtimes(f, at, at))
	}
	testkit.Eventually(t, "search events are accepted again", func() bool { return record() == nil })
	if _, trimmed := s.span("ac_impression_v1"); len(files) < 2 || trimmed == 0 {
		t.Errorf("%d files, %d search events were trimmed", len(files), trimmed)
	}
	s.publishes(u, chat)
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
