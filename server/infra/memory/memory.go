// Package memory says how much memory the process may use, and sets the garbage
// collector to it.
//
// Concurrency: Tune changes the whole process and is called once, at its start.
package memory

import (
	"bufio"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// Total is how many bytes the process may use: the machine's, or less in a container. 0
// where nothing says so.
func Total() int64 {
	n := machine("/proc/meminfo")
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && limit > 0 &&
			(n == 0 || limit < n) {
			n = limit
		}
	}
	return n
}

// machine reads how much memory Linux has.
func machine(path string) int64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) >= 2 && fields[0] == "MemTotal:" {
			kb, _ := strconv.ParseInt(fields[1], 10, 64)
			return kb << 10
		}
	}
	return 0
}

// UsedPercent is the share of Total that the process has in memory, in percent; 0 where nothing
// says how much that is.
func UsedPercent() float64 { return percent(resident("/proc/self/statm"), Total()) }

func percent(used, total int64) float64 {
	if total <= 0 {
		return 0
	}
	return float64(used) * 100 / float64(total)
}

// resident reads how many bytes the process has in memory on Linux.
func resident(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// Tune sets the garbage collector: the heap may grow by growth percent of what is in use
// before it runs, as long as Go's memory stays below share percent of what the process may
// use; 0 is no such bound. GOGC and GOMEMLIMIT in an environment like os.Environ's take
// precedence.
//
// A chat server has a small heap and allocates a lot, so by Go's own default of 100 percent it
// collects all the time. The bound keeps a large heap from growing fivefold; the rest is
// for the store's cache and the log's files, which are outside of Go's memory.
func Tune(growth, share int, environ []string) {
	if !has(environ, "GOGC") {
		debug.SetGCPercent(growth)
	}
	if limit := limitOf(Total(), share); limit > 0 && !has(environ, "GOMEMLIMIT") {
		debug.SetMemoryLimit(limit)
	}
}

// limitOf is a share of the memory in bytes; 0 for no bound.
func limitOf(total int64, share int) int64 { return total / 100 * int64(share) }

// has reports whether a variable has a value.
func has(environ []string, name string) bool {
	for _, v := range environ {
		if key, value, _ := strings.Cut(v, "="); key == name && value != "" {
			return true
		}
	}
	return false
}
