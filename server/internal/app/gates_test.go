package app_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// HQ-W04, HQ-W05, HQ-W06: a group is killed and revived, a backlog is read beside other work,
// a quiet topic stands beside a busy one, with small rates. It takes minutes: PARLEY_GATES=1
// asks for it.
func TestGates(t *testing.T) {
	if os.Getenv("PARLEY_GATES") == "" {
		t.Skip("PARLEY_GATES=1")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(t), "gates", "--short", "--dir", t.TempDir(), "W04", "W05", "W06")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	for _, row := range []string{"\n| W04 |", "\n| W05 |", "\n| W06 |"} {
		if !strings.Contains(string(out), row) {
			t.Errorf("no row %q", row)
		}
	}
}

func TestGatesAreNamed(t *testing.T) {
	for _, line := range [][]string{{"W99"}, {"--hold", "1ms"}, {"--long"}} {
		if code, _, stderr := run(t.Context(), nil, append([]string{"gates"}, line...)...); code != 2 {
			t.Errorf("%v: exit code %d, %s", line, code, stderr)
		}
	}
	code, stdout, _ := run(t.Context(), nil, "gates", "--help")
	if code != 0 || !strings.Contains(stdout, "W04") {
		t.Errorf("exit code %d, %s", code, stdout)
	}
}
