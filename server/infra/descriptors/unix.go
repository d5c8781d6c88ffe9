//go:build unix

package descriptors

import (
	"os"
	"syscall"
)

// Count returns how many files and connections the process may have open, and how many
// it has; ok is false where that is not known.
func Count() (limit, used int, ok bool) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, 0, false
	}
	limit = int(min(r.Cur, 1<<30))
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} {
		if names, err := os.ReadDir(dir); err == nil {
			return limit, len(names), true
		}
	}
	return limit, 0, false
}
