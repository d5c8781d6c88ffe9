package serving

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// Groups beyond the bound are shown as one, whose counters never go back, and which is as far behind
// as the one that is furthest. One of them is shown by name when another group goes.
func TestGroupMetricsBeyondTheBound(t *testing.T) {
	m, e, now := NewGroupMetrics(), &Engine{}, time.Now()
	all := map[string]*GroupMetric{}
	name := func(n int) string { return fmt.Sprint("g", n) }
	const more = 5
	for n := range ShownGroups + more {
		x := m.of(e, "t", name(n))
		x.Delivered.Add(int64(n))
		x.Observe(1, now.Add(-time.Duration(n)*time.Second), true)
		x.stalled.Store(true)
		all[name(n)] = x
	}
	show := func() (shown map[string]GroupValues, rest GroupValues) {
		shown = map[string]GroupValues{}
		list := m.Values(now)
		for _, v := range list[:len(list)-1] {
			shown[v.Group] = v
		}
		return shown, list[len(list)-1]
	}
	shown, rest := show()
	testkit.Equal(t, "shown", len(shown), ShownGroups)
	testkit.Equal(t, "the rest", rest, GroupValues{Topic: AllGroups, Group: AllGroups, Lag: more, Stalled: more,
		Oldest: (ShownGroups + more - 1) * time.Second, Delivered: more*ShownGroups + more*(more-1)/2})
	testkit.Equal(t, "one of them", shown[name(7)], GroupValues{Topic: "t", Group: name(7), Lag: 1, Stalled: 1,
		Oldest: 7 * time.Second, Delivered: 7})
	if m.of(e, "t", name(3)) != all[name(3)] || m.Knows("t", "none") || !m.Knows("t", name(ShownGroups)) {
		t.Error("a group is not known by its name")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	before := rest.Delivered
	for n := 0; len(all) > 0; n = rng.IntN(ShownGroups + more) {
		x := all[name(n)]
		if x == nil {
			continue
		}
		x.Delivered.Add(1)
		m.forget(&Engine{}, "t", name(n)) // of another owner
		testkit.Equal(t, "kept", m.Knows("t", name(n)), true)
		m.forget(e, "t", name(n))
		delete(all, name(n))
		shown, rest = show()
		testkit.Equal(t, "shown", len(shown), min(ShownGroups, len(all)))
		testkit.Equal(t, "behind", rest.Lag, int64(max(0, len(all)-ShownGroups)))
		if rest.Delivered < before {
			t.Fatalf("the counter of the rest goes from %d to %d", before, rest.Delivered)
		}
		before = rest.Delivered
	}
	m.of(e, "a", "g")
	m.of(e, "b", "g")
	m.forget(e, "a", "")
	testkit.Equal(t, "of another topic", m.Knows("b", "g"), true)
	next := &Engine{}
	m.of(next, "b", "g")
	m.forget(e, "", "") // the slot has a new owner, and the old one ends later
	testkit.Equal(t, "of the next owner", m.Knows("b", "g"), true)
}
