package logdir

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// MaxBytes is the cap of the log in a memory of that many bytes; 0 for one that is not
// known.
func MaxBytes(memory int64) int64 {
	if memory <= 0 {
		return 512 << 20
	}
	return min(512<<20, memory/16)
}

// Segments are so small that those which are still written to, one for each partition,
// stay well below the log's cap.
const (
	segmentShare = 256
	maxSegment   = 16 << 20
	minSegment   = 64 << 10
)

// SegmentBytes is the size of a segment under a cap, in bytes.
func SegmentBytes(limit int64) int64 { return max(minSegment, min(maxSegment, limit/segmentShare)) }

// Memory is how much the process may use: the machine's, or less in a container. 0
// where nothing says so.
func Memory() int64 {
	n := meminfo("/proc/meminfo")
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && limit > 0 && (n == 0 || limit < n) {
			n = limit
		}
	}
	return n
}

// meminfo reads the machine's memory as Linux tells it.
func meminfo(path string) int64 {
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
