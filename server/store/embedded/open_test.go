package embedded

import (
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// A directory in which an earlier Open failed, and then the power, is opened by the
// next, wherever the first was.
func TestOpenAfterAFailedOpen(t *testing.T) {
	mayAbandon(t)
	mem := vfs.NewCrashableMem()
	rng := rand.New(rand.NewPCG(1, 1))
	for fail := int64(1); ; fail++ {
		var n atomic.Int64
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose && !inBackground() &&
				n.Add(1) == fail {
				return syscall.EIO
			}
			return nil
		}))
		s, err := openOrFatal(Options{Dir: "/data", FS: fs})
		if err == nil {
			_ = s.Close()
		}
		if n.Load() < fail {
			break // all operations of an Open were tried
		}
		mem = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		again := open1(t, Options{Dir: "/data", FS: mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})})
		if err := again.Transact(t.Context(), putRow(1)); err != nil || again.Generation() == "" {
			t.Fatal(err)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
		if fail%3 == 0 {
			mem = vfs.NewCrashableMem() // begin with nothing again
		}
	}
}

// inBackground reports whether Pebble calls from a goroutine of its own: a failure there ends the
// process, the test's too.
func inBackground() bool {
	s := string(debug.Stack())
	return strings.Contains(s, ".(*DB).flush(") || strings.Contains(s, ".(*DB).compact(")
}
