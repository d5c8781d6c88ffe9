// Package racetest keeps tests under the race detector to what it can see.
package racetest

import (
	"os"
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

// SkipSerial skips a test that does one thing after another for long, if the race detector
// is on: the tests beside it cover its background work together with other goroutines, ten
// times as fast. PARLEY_TEST_STRICT=1 (every night) runs it all the same.
func SkipSerial(t testing.TB) {
	t.Helper()
	if os.Getenv("PARLEY_TEST_STRICT") != "1" {
		skip(t, "not run: one thing after another has no races, and takes long under the detector")
	}
}

func skip(t testing.TB, why string) {
	t.Helper()
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip(why)
	}
}
