package backend_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/kafka"
)

func config(dir string) backend.Config {
	return backend.Config{Embedded: &backend.Embedded{DataDir: dir, Kafka: "127.0.0.1:0"}}
}

func TestOpenAndReopen(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "data")
	first, err := backend.Open(config(dir))
	if err != nil {
		t.Fatal(err)
	}
	generation := first.Generation
	// A second one finds the directory locked, and leaves the first alone.
	if e, err := backend.Open(config(dir)); err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("opened twice: %v, %v", e, err)
	}
	c, err := kafka.NewProducer(first.KafkaAddr(), first.KafkaOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := backend.Open(config(dir))
	if err != nil {
		t.Fatal(err)
	}
	if generation == "" || !second.History.Holds(generation, 0) {
		t.Errorf("generation %q does not follow on %q", second.Generation, generation)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}

// What fails half way leaves nothing locked behind.
func TestFailedOpenLetsGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "kafka.properties") // a directory in its place
	if err := os.Mkdir(log, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := backend.Open(config(dir)); err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("the log's directory is a file: %v", err)
	}
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	e, err := backend.Open(config(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []backend.Config{{}, {Embedded: &backend.Embedded{DataDir: "x"}},
		{Embedded: &backend.Embedded{Kafka: "127.0.0.1:0"}},
		{Embedded: config("x").Embedded, Distributed: &backend.Distributed{}}} {
		if _, err := backend.Open(c); err == nil {
			t.Errorf("%+v was opened", c)
		}
	}
}
