// Package racetest keeps tests under the race detector to what it can see.
package racetest

import (
	"runtime/debug"
	"slices"
	"testing"
)

// SkipProgram skips a test that drives a program as a process of its own, if the race
// detector is on: the program is built without it, so that nothing would be found, and
// the same test runs without the detector anyway.
func SkipProgram(t testing.TB) {
	t.Helper()
	skip(t, "not run: the program is built without the race detector")
}

// SkipMemory skips a test that measures memory, if the race detector is on: its own
// would be measured, too.
func SkipMemory(t testing.TB) {
	t.Helper()
	skip(t, "not run: the race detector takes memory of its own")
}

func skip(t testing.TB, why string) {
	t.Helper()
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip(why)
	}
}
