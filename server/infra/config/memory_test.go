package config

import (
	"strings"
	"testing"
)

// How much memory a process takes can be set for all programs.
func TestMemorySettings(t *testing.T) {
	for _, p := range []Program{Server, Workers} {
		s, _, err := read(p, nil, nil)
		if err != nil || s.GCPercent != 400 || s.MemoryPercent != 60 {
			t.Errorf("by default %d %% and %d %%: %v", s.GCPercent, s.MemoryPercent, err)
		}
		s, _, err = read(p, []string{"--gc-percent", "100"}, env("PARLEY_GC_PERCENT=50", "PARLEY_MEMORY_PERCENT=0"))
		if err != nil || s.GCPercent != 100 || s.MemoryPercent != 0 {
			t.Errorf("%d %% and %d %%: %v", s.GCPercent, s.MemoryPercent, err)
		}
	}
	for says, variable := range map[string]string{
		"gc-percent must be 10 to 10000, not \"9\"":   "PARLEY_GC_PERCENT=9",
		"gc-percent must be 10 to 10000, not \"off\"": "PARLEY_GC_PERCENT=off",
		"memory-percent must be 0 to 95, not \"96\"":  "PARLEY_MEMORY_PERCENT=96",
	} {
		if _, _, err := read(Server, nil, env(variable)); err == nil || !strings.HasPrefix(err.Error(), says) {
			t.Errorf("%s: %v", variable, err)
		}
	}
}
