package config

import (
	"strings"
	"testing"
)

// A reserve is a size in MB or GB, and by default what the store thinks right.
func TestDiskReserve(t *testing.T) {
	for value, want := range map[string]uint64{
		"auto": 0, "1MB": 1 << 20, "500MB": 524_288_000, "4GB": 4_294_967_296, "100000GB": 107_374_182_400_000,
		"102400000MB": 107_374_182_400_000,
	} {
		if s, _, err := read(Server, []string{"--disk-reserve", value}, nil); err != nil || s.DiskReserve != want {
			t.Errorf("%s: %d, %v", value, s.DiskReserve, err)
		}
	}
	if s, _, err := read(Server, nil, nil); err != nil || s.DiskReserve != 0 {
		t.Errorf("by default %d, %v", s.DiskReserve, err)
	}
	for _, value := range []string{"", "0GB", "5%", "5", "GB", "-1GB", "1.5GB", "1 GB", "100001GB", "102400001MB",
		"18446744073709551616MB"} {
		if _, _, err := read(Server, []string{"--disk-reserve", value}, nil); err == nil ||
			!strings.Contains(err.Error(), "disk-reserve must be auto, or a size such as 500MB") {
			t.Errorf("%q: %v", value, err)
		}
	}
}
