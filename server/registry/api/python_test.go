package api

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
)

// Confluent's own client, serializer and deserializer work with the registry.
// PARLEY_PYTHON names an interpreter with confluent-kafka[protobuf,schemaregistry].
func TestPython(t *testing.T) {
	python := os.Getenv("PARLEY_PYTHON")
	if python == "" {
		t.Skip("PARLEY_PYTHON names no interpreter")
	}
	st := storetest.NewMemory(time.Now)
	if _, err := registry.New(st).Events(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, url := serve(t, st)
	if out, err := exec.CommandContext(t.Context(), python, "testdata/client.py", url).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
