package main

import (
	"os"
	"strings"
	"testing"
)

// HQ-W01, HQ-W02, HQ-W04, HQ-W05, HQ-W06, HQ-W08: claimed rates are held, a group is killed and
// revived, a backlog is read beside other work, a quiet topic stands beside a busy one. HQ-D17, HQ-L21,
// HQ-P13, HQ-R1: acknowledgements, heartbeats, and deliveries beside removals have their times. It takes
// minutes: PARLEY_GATES=1 asks for small rates, PARLEY_GATES=2m for the claimed ones, each held
// for two minutes.
func TestGates(t *testing.T) {
	asked := os.Getenv("PARLEY_GATES")
	if asked == "" {
		t.Skip("PARLEY_GATES=1")
	}
	names := []string{"W04", "W05", "W06", "R1", "D17", "P13"}
	args := []string{"gates", "--server", binary(t), "--dir", t.TempDir()}
	if asked == "1" {
		args = append(args, "--short")
	} else {
		names = append(names, "W01", "W02", "W03-watermark")
		args = append(args, "--hold", asked)
	}
	code, out, errs := line(t, append(args, names...)...)
	t.Log(errs + out)
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, name := range append(names, "W08") {
		if row := "\n| " + name + " |"; !strings.Contains(out, row) {
			t.Errorf("no row %q", row)
		}
	}
	if !strings.Contains(out, "W03-100 has not run") {
		t.Error("a release was decided on without a blocking gate")
	}
}

func TestGatesAreNamed(t *testing.T) {
	for _, args := range [][]string{{"W99"}, {"--hold", "1ms"}, {"--long"}, {"W04"}} {
		if code, _, stderr := line(t, append([]string{"gates"}, args...)...); code != 2 {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
	code, stdout, _ := line(t, "gates", "--help")
	if code != 0 || !strings.Contains(stdout, "W04") {
		t.Errorf("exit code %d, %s", code, stdout)
	}
}
