// Package embeddedtest gives tests of other packages the embedded engine on a disk whose
// power can fail.
//
// It owns nothing but the simulated disk. Concurrency: a Disk is safe for concurrent
// use.
package embeddedtest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/parley-chat/parley/server/store/embedded"
)

// Disk is a disk in memory that knows what was synced.
type Disk struct {
	mem  *vfs.MemFS
	sync func() // before each sync; nil: nothing
}

// NewDisk makes an empty disk. sync is called before each sync of a file and may wait,
// as a slow disk does; nil for a fast one.
func NewDisk(sync func()) *Disk { return &Disk{mem: vfs.NewCrashableMem(), sync: sync} }

// Open opens the engine on the disk; the test closes it.
func (d *Disk) Open(t testing.TB, clock func() time.Time) *embedded.Store {
	t.Helper()
	var fs vfs.FS = d.mem
	if d.sync != nil {
		fs = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			switch op.Kind {
			case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
				d.sync()
			}
			return nil
		}))
	}
	s, err := embedded.Open(embedded.Options{Dir: "/data", FS: fs, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// PowerLoss returns what is on the disk if the power fails now: all that was synced, and
// of the rest a part, 0 to 100 percent by chance.
func (d *Disk) PowerLoss(rng *rand.Rand) *Disk {
	return &Disk{mem: d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})}
}
