package config

import (
	"fmt"
	"strconv"
	"strings"
)

// maxDiskReserve bounds the reserve, in GB.
const maxDiskReserve = 100_000

// parseDiskReserve takes auto, or a number of megabytes or gigabytes of 1024 * 1024 bytes and
// 1024 times as many.
func parseDiskReserve(s *Settings, value string) error {
	if value == "auto" {
		s.DiskReserve = 0
		return nil
	}
	digits, unit := strings.CutSuffix(value, "GB")
	size, most := uint64(1<<30), uint64(maxDiskReserve)
	if !unit {
		if digits, unit = strings.CutSuffix(value, "MB"); unit {
			size, most = 1<<20, maxDiskReserve<<10
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if !unit || err != nil || n == 0 || n > most {
		return fmt.Errorf("must be auto, or a size such as 500MB or 4GB up to %dGB, not %.40q", maxDiskReserve, value)
	}
	s.DiskReserve = n * size
	return nil
}
