package space

import (
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Usage returns the free and total size of a file system; 0 if it is unknown.
func Usage(fs vfs.FS, dir string) (free, total uint64) {
	u, err := fs.GetDiskUsage(dir)
	if err != nil {
		return 0, 0
	}
	return u.AvailBytes, u.TotalBytes
}

// openReserve is what an opening needs on the disk besides what it rewrites.
const openReserve = 16 << 20

// Check refuses to open a store without enough free space: Pebble first rewrites its
// log as tables, and retries for ever.
func Check(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return nil //nolint:nilerr // there is none yet, or the opening says what is wrong
	}
	need := uint64(openReserve)
	for _, name := range names {
		if info, err := fs.Stat(fs.PathJoin(dir, name)); err == nil && strings.HasSuffix(name, ".log") {
			need += uint64(info.Size())
		}
	}
	free, total := Usage(fs, dir)
	if total == 0 || free >= need {
		return nil
	}
	return fmt.Errorf("the disk of %s is full: %d MB are free, the store needs %d MB to start; nothing was changed", dir,
		free>>20, need>>20+1)
}
