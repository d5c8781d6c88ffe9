package probe

import (
	"bufio"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/load/figure"
)

// Machine describes where this runs.
func Machine() figure.Machine {
	return figure.Machine{OS: runtime.GOOS + "/" + runtime.GOARCH, Processors: runtime.NumCPU(), Model: model(),
		Go: runtime.Version()}
}

// model is the processor's name, where the system says it.
func model() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "processors"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "processors"
}

const (
	syncs     = 100 // before and after the rounds
	syncBlock = 4 << 10
)

// Disk measures what the disk of the server's data does alone.
type Disk struct {
	dir   string
	times figure.Histogram
}

// Measure appends blocks to a file of its own in a directory, each synced.
func (d *Disk) Measure(dir string) {
	f, err := os.CreateTemp(dir, "load-fsync-*")
	if err != nil { // the directory does not exist, or belongs to another user
		return
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer f.Close()
	block := make([]byte, syncBlock)
	for range syncs {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return
		}
		if err := f.Sync(); err != nil {
			return
		}
		d.times.Add(time.Since(began))
	}
	d.dir = dir
}

// Report adds what was measured, if anything.
func (d *Disk) Report(m *figure.Machine) {
	m.Disk = d.dir
	m.FsyncP50 = d.times.Quantile(0.5).Seconds() * 1e3
	m.FsyncP99 = d.times.Quantile(0.99).Seconds() * 1e3
}
