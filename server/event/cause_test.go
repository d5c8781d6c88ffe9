package event

import (
	"regexp"
	"testing"
)

// The defaults of a command are the same for all its events, and for whichever process
// continues it with what was kept of it: the correlation.
func TestCompleteCause(t *testing.T) {
	first := Cause{}.Complete("evt_1")
	if first.Actor != "system" || first.Correlation != "evt_1" || first.Causation != "evt_1" ||
		!regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(first.Trace) {
		t.Errorf("%+v, want the first event's id, and a W3C trace-id", first)
	}
	if next := first.Complete("evt_2"); next != first {
		t.Errorf("%+v in the next event, %+v in the first", next, first)
	}
	if kept := (Cause{Correlation: "evt_1"}).Complete("evt_3"); kept != first {
		t.Errorf("%+v continues %+v", kept, first)
	}
	if other := (Cause{}).Complete("evt_4"); other.Trace == first.Trace || other.Correlation == first.Correlation {
		t.Errorf("two commands are %+v", other)
	}
	whole := Cause{Actor: "ann", Trace: "4bf92f3577b34da6a3ce929d0e0e4736", Correlation: "c", Causation: "r", Service: "s"}
	if got := whole.Complete("evt_5"); got != whole {
		t.Errorf("%+v, want %+v", got, whole)
	}
}
