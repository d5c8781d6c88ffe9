package operations

import (
	"testing"

	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// HQ-Q09: what a group is to receive is what its state says; each way in which it is not is
// found, and nothing else.
func TestFaults(t *testing.T) {
	const end = 10
	set := func(from, to int64) machine.Set { return machine.SetOf(machine.Run{From: from, To: to}) }
	for name, x := range map[string]struct {
		receives          bool
		missing, readable machine.Set
		fault             bool
	}{
		"receives":                {true, set(3, machine.NoEnd), set(0, machine.NoEnd), false},
		"receives, has all":       {true, set(end, machine.NoEnd), set(0, machine.NoEnd), false},
		"receives nothing new":    {true, set(3, end), set(0, machine.NoEnd), true},
		"not all is delivered":    {true, set(3, machine.NoEnd), set(4, machine.NoEnd), true},
		"has ended":               {false, machine.Set{}, machine.Set{}, false},
		"has ended, and holds":    {false, set(3, 4), set(3, 4), true},
		"has ended, and receives": {false, set(end, machine.NoEnd), set(end, machine.NoEnd), true},
	} {
		if f := faultOf(x.receives, x.missing, x.readable, end); (f != "") != x.fault {
			t.Errorf("%s: %q", name, f)
		}
	}
}
