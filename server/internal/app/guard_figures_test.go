package app_test

import (
	"encoding/json"
	"maps"
	"os"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// figures are what the file has of an operation.
type figures struct {
	cost
	CPU map[string]float64 `json:"cpu"` // in calibrations, by processor
}

// readFigures reads the file, and what it has for a processor.
func readFigures(t *testing.T, processor string) (file map[string]figures, known costs) {
	t.Helper()
	text, err := os.ReadFile(guardFile)
	testkit.Must(t, err)
	testkit.Must(t, json.Unmarshal(text, &file))
	known = costs{}
	for name, f := range file {
		known[name] = cost{f.Allocations, f.Bytes, f.CPU[processor]}
	}
	return file, known
}

// writeFigures writes what a processor took, and keeps what others did.
func writeFigures(t *testing.T, processor string, file map[string]figures, got costs) {
	t.Helper()
	written := map[string]figures{}
	for name, c := range got {
		cpu := maps.Clone(file[name].CPU)
		if cpu == nil {
			cpu = map[string]float64{}
		}
		cpu[processor] = c.CPU
		written[name] = figures{c, cpu}
	}
	text, err := json.MarshalIndent(written, "", "  ")
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(guardFile, append(text, '\n'), 0o644))
}

// Processor time is compared with that of the same processor only, and an update keeps the others'.
func TestCostsByProcessor(t *testing.T) {
	other := costs{"send": {Allocations: 100, Bytes: 1000}}
	if dearer, cheaper := other.compare(costs{"send": {100, 1000, 50}}); len(dearer)+len(cheaper) > 0 {
		t.Errorf("without figures: dearer %q, cheaper %q", dearer, cheaper)
	}
	if dearer, _ := other.compare(costs{"send": {120, 1000, 50}}); len(dearer) != 1 {
		t.Errorf("allocations without figures of the processor: dearer %q", dearer)
	}
	file, _ := readFigures(t, "none")
	t.Chdir(t.TempDir())
	testkit.Must(t, os.Mkdir("testdata", 0o700))
	writeFigures(t, "a", file, costs{"read by RPC, client included": {1, 2, 3}})
	got, known := readFigures(t, "a")
	if c := known["read by RPC, client included"]; c != (cost{1, 2, 3}) || len(known) != 1 ||
		len(got["read by RPC, client included"].CPU) != len(file["read by RPC, client included"].CPU)+1 {
		t.Errorf("%+v, %+v", known, got)
	}
}
