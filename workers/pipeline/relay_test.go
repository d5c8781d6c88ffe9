package pipeline_test

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/workers/pipeline"
)

// values are the samples of a metric, by the value of its one label; "" without one.
func values(t *testing.T, m *telemetry.Metrics, name string) map[string]int {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	got := map[string]int{}
	line := regexp.MustCompile(`(?m)^` + name + `(?:\{\w+="(\w+)"\})? (\d+)$`)
	for _, m := range line.FindAllStringSubmatch(rec.Body.String(), -1) {
		got[m[1]], _ = strconv.Atoi(m[2])
	}
	return got
}

// L-119, L-171: events that the relay of a process cannot publish move the counter of their
// type among the metrics of the process, and no other type's; they are published later.
func TestFailedPublishesAreShown(t *testing.T) {
	b, err := backend.Open(backend.Config{Embedded: &backend.Embedded{DataDir: t.TempDir(), Kafka: "127.0.0.1:0"}})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, b.Close()) })
	log := slog.New(slog.DiscardHandler)
	schemas, err := pipeline.LoadSchemas(t.Context(), b.Store, true, log)
	testkit.Must(t, err)
	metrics := telemetry.NewMetrics()
	next := kafka.Topics()[0] // a version of a topic that the log does not have yet
	next.Name = versions.Name(kafka.ChatsCreated, 2)
	next.Partitions = kafka.Partitions(kafka.ChatsCreated)
	old := versions.Version{Number: 1, Partitions: next.Partitions, Status: versions.Past}
	current := versions.Version{Number: 2, Partitions: next.Partitions, Status: versions.Current}
	testkit.Value(versions.Save(t.Context(), b.Store,
		versions.State{Topics: map[string][]versions.Version{kafka.ChatsCreated: {old, current}}}))(t)
	path, err := pipeline.New(t.Context(),
		pipeline.Config{Backend: b, Process: "srv_test", Schemas: schemas, Metrics: metrics, Chats: metrics.Chats(),
			Logger: log},
		pipeline.Relay{Slots: 1, Exclusive: true})
	testkit.Must(t, err)
	t.Cleanup(path.Close)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- lifecycle.Run(ctx, path.Services, func() {}) }()
	t.Cleanup(func() {
		cancel()
		testkit.Must(t, <-done)
	})
	chats, err := chat.New(t.Context(), chat.Config{Store: b.Store, Clock: time.Now, Generation: b.Generation,
		Producer: "srv_test", Committed: path.Nudge})
	testkit.Must(t, err)
	for _, user := range []string{"alice", "bob"} {
		testkit.Must(t, chats.EnsureUser(t.Context(), user))
	}
	_, err = chats.CreateDirect(t.Context(), chat.CreateDirect{Caller: "alice", Other: "bob"})
	testkit.Must(t, err)
	failed := func() map[string]int { return values(t, metrics, telemetry.LifecyclePublishFails) }
	testkit.Eventually(t, "a creation and a membership that are refused are counted", func() bool {
		return failed()["ChatCreated"] > 0 && failed()["MembershipChanged"] > 0
	})
	if n := failed()["ChatUpdated"]; n != 0 {
		t.Errorf("%d changes of chats are counted, and there was none", n)
	}
	testkit.Must(t, b.AddTopic(t.Context(), next, kafka.ChatsCreated))
	testkit.Eventually(t, "what was refused is published", func() bool {
		return values(t, metrics, telemetry.RelayPublished)[""] == 2
	})
}
