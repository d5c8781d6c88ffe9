package opsctl

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// An outage is one line, however often it is tried again; what the server refuses to have
// acknowledged is one, too. What is not a warning is not shown.
func TestNotes(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	log := (&call{stderr: &stderr}).notes().With("topic", "orders")
	for n := range 3 {
		log.Warn("topic: not connected", "error", errors.New("refused\nit is"), "again_in", time.Duration(n))
	}
	log.Info("topic: the subscription has another state")
	log.Warn("topic: come again", "outcome", "OUTCOME_NOT_ACTIVE", "position", 7)
	log.Warn("topic: not connected", "error", errors.New("refused"))
	testkit.Equal(t, "stderr", stderr.String(), `not connected, error refused it is
come again, outcome OUTCOME_NOT_ACTIVE, position 7
not connected, error refused
`)
}

// What is printed as a duration is one that flags take, and means the same.
func TestDurations(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"30d": 30 * 24 * time.Hour, "7d": 7 * 24 * time.Hour, "36h": 36 * time.Hour, "1h30m": 90 * time.Minute,
		"1m": time.Minute, "10s": 10 * time.Second, "1m40s": 100 * time.Second, "0s": 0, "1.5s": 1500 * time.Millisecond,
		"1h0m5s": time.Hour + 5*time.Second,
	} {
		testkit.Equal(t, want, writeDuration(d), want)
		back, err := parseDuration(want)
		testkit.Equal(t, want+" again", back, d)
		testkit.Must(t, err)
	}
}
