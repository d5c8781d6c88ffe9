package backend_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/testkit"
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

// In one process a topic of search events has one partition, so that the log has few files.
// Those of a data directory that was made with more keep them, also when the broker's list is
// lost, and those of chats have what is declared.
func TestPartitionsOfSearchTopics(t *testing.T) {
	t.Parallel()
	targets, err := search.ParseTargets("search_click=clicks.eu")
	testkit.Must(t, err)
	const click, dwell, other = "search_click_v1", "search_dwell_v1", "clicks.eu"
	names := []string{click, click + ".dlq", dwell, other, other + ".dlq", kafka.MessagesPersisted, kafka.DeadLetters}
	want := map[string]int{click: 1, click + ".dlq": 1, dwell: 1, other: 1, other + ".dlq": 1,
		kafka.MessagesPersisted: 64, kafka.DeadLetters: 8}
	expect := func(dir string) {
		t.Helper()
		got := counted(t, dir, targets, names...)
		for name, n := range want {
			if got[name] != n {
				t.Errorf("%s has %d partitions, expected %d", name, got[name], n)
			}
		}
	}
	dir := t.TempDir()
	expect(dir)
	expect(dir)

	old := t.TempDir() // as it was made when each process had what is declared
	testkit.Must(t, os.MkdirAll(filepath.Join(old, "log"), 0o700))
	b, err := kafka.OpenBroker(kafka.BrokerConfig{Dir: filepath.Join(old, "log"), Listen: "127.0.0.1:0"})
	testkit.Must(t, err)
	b.Close()
	want[click], want[dwell] = 8, 8
	expect(old)
	testkit.Must(t, os.Remove(filepath.Join(old, "log", "topics.json")))
	delete(want, dwell) // of what has no files nobody knows
	delete(want, click)
	expect(old)
}
