package operate

import (
	"testing"

	"github.com/parley-chat/parley/server/topic/positions"
)

// HQ-Q09: what a group is to receive is what its state says; each way in which it is not is
// found, and nothing else.
func TestFaults(t *testing.T) {
	const end = 10
	set := func(from, to int64) positions.Set { return positions.Of(positions.Run{From: from, To: to}) }
	for name, x := range map[string]struct {
		receives          bool
		missing, readable positions.Set
		fault             bool
	}{
		"receives":                {true, set(3, positions.Open), set(0, positions.Open), false},
		"receives, has all":       {true, set(end, positions.Open), set(0, positions.Open), false},
		"receives nothing new":    {true, set(3, end), set(0, positions.Open), true},
		"not all is delivered":    {true, set(3, positions.Open), set(4, positions.Open), true},
		"has ended":               {false, positions.Set{}, positions.Set{}, false},
		"has ended, and holds":    {false, set(3, 4), set(3, 4), true},
		"has ended, and receives": {false, set(end, positions.Open), set(end, positions.Open), true},
	} {
		if f := faultOf(x.receives, x.missing, x.readable, end); (f != "") != x.fault {
			t.Errorf("%s: %q", name, f)
		}
	}
}
