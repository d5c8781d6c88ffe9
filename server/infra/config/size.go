package config

import (
	"fmt"
	"strconv"
	"strings"
)

// maxSize bounds sizes, in GB.
const maxSize = 100_000

// ParseSize reads a number of megabytes or gigabytes, of 1024 * 1024 bytes and 1024 times as many, in
// bytes.
func ParseSize(value string) (uint64, error) {
	digits, ok := strings.CutSuffix(value, "GB")
	unit, limit := uint64(1<<30), uint64(maxSize)
	if !ok {
		if digits, ok = strings.CutSuffix(value, "MB"); ok {
			unit, limit = 1<<20, maxSize<<10
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || n == 0 || n > limit {
		return 0, fmt.Errorf("a size such as 500MB or 4GB up to %dGB, not %.40q", maxSize, value)
	}
	return n * unit, nil
}

// size takes auto, which is 0, or a size.
func size(field func(*Settings) *uint64) func(*Settings, string) error {
	return func(s *Settings, value string) (err error) {
		if value == "auto" {
			*field(s) = 0
			return nil
		}
		if *field(s), err = ParseSize(value); err != nil {
			return fmt.Errorf("must be auto, or %w", err)
		}
		return nil
	}
}
