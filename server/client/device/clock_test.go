package device_test

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/client/device"
)

// A stored message has no monotonic reading. Its age at the start is by wall time, then by the monotonic clock.
func TestAgeOfAStoredMessage(t *testing.T) {
	const day = 24 * time.Hour
	start := time.Now()
	stored := func(at time.Time) *fixture {
		r := newFixture(t, nil)
		r.now = start
		r.calls = nil
		r.snapshot.Outbox = []device.OutboxEntry{{ClientMessageID: "u", ChatID: "c", Content: "x", CreatedAt: at.Round(0)}}
		r.m = device.New(r.cfg, &r.snapshot)
		return r
	}
	tooOld := func(r *fixture) bool {
		r.take()
		for _, e := range r.seen {
			if e.SendFailed != nil && e.SendFailed.Why.Reason == "TOO_OLD" {
				return true
			}
		}
		return false
	}
	if !tooOld(stored(start.Add(-8 * day))) {
		t.Error("the server has forgotten the id of a message that is sent")
	}
	r := stored(start.Add(8 * day)) // written while the clock was ahead
	if at := r.m.Outbox()[0].CreatedAt; at.After(start) || !strings.Contains(at.String(), "m=") {
		t.Errorf("created %v, after the start or without a monotonic reading", at)
	}
	r.now = start.Add(6 * day)
	if tooOld(r) {
		t.Error("a message of six days is given up")
	}
	r.fail(device.SendMessage, connect.CodeUnavailable, "")
	r.now = start.Add(7 * day)
	if !tooOld(r) {
		t.Error("the server has forgotten the id of a message that is sent")
	}
}
