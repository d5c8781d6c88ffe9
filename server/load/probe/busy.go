package probe

import (
	"os"
	"strconv"
	"strings"
)

// Busy is the time that the machine's processors have worked since it started, and the time
// that they could have worked, in ticks of the system. Its zero value is that of a system that does not report them.
type Busy struct{ worked, could float64 }

// ReadBusy reads both from /proc/stat.
func ReadBusy() Busy {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Busy{}
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return parseBusy(line)
}

// parseBusy reads the line of all processors: user, nice, system, idle, waiting for the disk, and others that
// worked. Time that a hypervisor gave to other machines counts as work: it was not there to be used.
func parseBusy(line string) (b Busy) {
	const idle, waiting, steal = 3, 4, 7
	fields := strings.Fields(line)
	if len(fields) <= steal || fields[0] != "cpu" {
		return Busy{}
	}
	for i, f := range fields[1 : steal+2] {
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return Busy{}
		}
		b.could += n
		if i != idle && i != waiting {
			b.worked += n
		}
	}
	return b
}

// Since is the share of the processors' time that was used since an earlier reading, 0 to 1; 0 if the system
// does not report it.
func (b Busy) Since(before Busy) float64 {
	if b.could <= before.could {
		return 0
	}
	return (b.worked - before.worked) / (b.could - before.could)
}
