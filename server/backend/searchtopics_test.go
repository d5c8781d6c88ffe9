package backend_test

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// counted opens a data directory, and returns how many partitions its topics have.
func counted(t *testing.T, dir string, targets search.Targets, topics ...string) map[string]int {
	t.Helper()
	cfg := config(dir)
	cfg.Embedded.Search = targets
	b, err := backend.Open(cfg)
	testkit.Must(t, err)
	n, err := lag.Counts(t.Context(), b.KafkaAddr(), topics, b.KafkaOptions()...)
	testkit.Must(t, err)
	testkit.Must(t, b.Close())
	return n
}

// Topics have the partitions that are declared. Those of search events that a data directory has with other
// numbers keep them: nothing depends on an order across their keys.
func TestPartitionsOfSearchTopics(t *testing.T) {
	t.Parallel()
	targets, err := search.ParseTargets("search_click=clicks.eu")
	testkit.Must(t, err)
	const click, dwell, other = "search_click_v1", "search_dwell_v1", "clicks.eu"
	names := []string{click, click + ".dlq", dwell, other, other + ".dlq", kafka.MessagesPersisted, kafka.DeadLetters}
	want := map[string]int{click: 8, click + ".dlq": 1, dwell: 8, other: 8, other + ".dlq": 1,
		kafka.MessagesPersisted: 64, kafka.DeadLetters: 8}
	dir := t.TempDir()
	expect := func() {
		t.Helper()
		got := counted(t, dir, targets, names...)
		for name, n := range want {
			if got[name] != n {
				t.Errorf("%s has %d partitions, expected %d", name, got[name], n)
			}
		}
	}
	expect()
	expect()

	dir = t.TempDir()
	st := testkit.Value(embedded.Open(embedded.Options{Dir: dir}))(t)
	log := commitlog.NewLocal(records.Of(st), time.Now)
	for _, name := range []string{click, other} {
		testkit.Value(log.CreateEventTopic(t.Context(), commitlog.EventTopic{Name: name, Partitions: 1}))(t)
		want[name] = 1
	}
	testkit.Must(t, st.Close())
	expect()
}

// A topic of chats that has another number of partitions than declared is refused: a chat's events would go to
// another partition (K-045, K-048).
func TestOtherPartitionCountIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	st := testkit.Value(embedded.Open(embedded.Options{Dir: dir}))(t)
	log := commitlog.NewLocal(records.Of(st), time.Now)
	testkit.Value(log.CreateEventTopic(t.Context(), commitlog.EventTopic{Name: kafka.ChatsCreated, Partitions: 17}))(t)
	testkit.Must(t, st.Close())
	e, err := backend.Open(config(dir))
	if err == nil {
		testkit.Must(t, e.Close())
	}
	if err == nil || !strings.Contains(err.Error(), "has 17 partitions in the event log, not 16") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("opened: %v", err)
	}
}
