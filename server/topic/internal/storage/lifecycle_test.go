package storage

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// HQ-X8, HQ-C02, HQ-C03, HQ-C04, HQ-C05, HQ-C06, HQ-C07, HQ-C08, HQ-C09, HQ-C10, HQ-C11, HQ-C12, HQ-C13,
// HQ-C14, HQ-C15: each pair of state and transition is legal or not, and leads where
// the table says; there is no other.
func TestTransitions(t *testing.T) {
	const no = -1
	table := map[Transition]map[State]State{
		Subscribe: {None: Active, Active: no, Paused: no, Dead: no, Cancelled: Active},
		Pause:     {None: no, Active: Paused, Paused: Paused, Dead: no, Cancelled: no},
		Resume:    {None: no, Active: Active, Paused: Active, Dead: no, Cancelled: no},
		Cancel:    {None: no, Active: Cancelled, Paused: Cancelled, Dead: Cancelled, Cancelled: Cancelled},
		Leave:     {None: no, Active: Cancelled, Paused: Cancelled, Dead: Cancelled, Cancelled: Cancelled},
		Expire:    {None: no, Active: Dead, Paused: no, Dead: no, Cancelled: no},
		Heartbeat: {None: no, Active: Active, Paused: Paused, Dead: Active, Cancelled: no},
		Remove:    {None: no, Active: no, Paused: no, Dead: None, Cancelled: None},
		Resurrect: {None: no, Active: no, Paused: no, Dead: Active, Cancelled: no},
		Continue:  {None: no, Active: no, Paused: no, Dead: Active, Cancelled: no},
	}
	for tr := Subscribe; tr <= Continue; tr++ {
		for s := None; s <= Cancelled; s++ {
			want, named := table[tr][s]
			if !named {
				t.Fatalf("%s of %s is not in the table", tr, s)
			}
			next, ok := NextState(s, tr)
			if ok != (want != no) || ok && next != want {
				t.Errorf("%s of %s: %s, %v", tr, s, next, ok)
			}
		}
	}
	if _, ok := NextState(Active, Continue+1); ok {
		t.Error("a transition that is none is legal")
	}
	if !Receives(Active) || !Receives(Paused) || Receives(Dead) || Receives(Cancelled) || Receives(None) {
		t.Error("wrong states receive")
	}
}

// HQ-L01, HQ-L02, HQ-L04: what may be chosen for heartbeats, and what is not wise.
func TestHeartbeats(t *testing.T) {
	if DefaultHeartbeatInterval != 60*time.Second || DefaultHeartbeatTimeout != 300*time.Second {
		t.Error("other defaults")
	}
	for _, x := range []struct {
		interval, timeout time.Duration
		problem, warning  bool
	}{
		{60 * time.Second, 300 * time.Second, false, false},
		{30 * time.Second, 120 * time.Second, false, false},
		{5 * time.Second, 15 * time.Second, false, true},
		{300 * time.Second, 600 * time.Second, true, false},
		{100 * time.Second, 300 * time.Second, false, true},
		{101 * time.Second, 300 * time.Second, true, false},
	} {
		problem, warning := CheckHeartbeats(x.interval, x.timeout)
		if (problem != "") != x.problem || (warning != "") != x.warning {
			t.Errorf("%s and %s: %q, %q", x.interval, x.timeout, problem, warning)
		}
	}
}

// HQ-L10, HQ-P10: groups are checked each fifth of their timeout, which is each minute by
// default.
func TestDetectEvery(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		30 * time.Minute: 5 * time.Minute, 10 * time.Minute: 2 * time.Minute, 5 * time.Minute: time.Minute,
		2 * time.Minute:  24 * time.Second,
		10 * time.Second: 2 * time.Second, 3 * time.Second: time.Second,
	} {
		if got := DetectEvery(timeout); got != want {
			t.Errorf("%s: %s, not %s", timeout, got, want)
		}
	}
}

func at(s int) time.Time { return time.Unix(int64(s), 0) }

func group(key string, count int64) Silence {
	return Silence{Key: key, Heartbeats: count, Timeout: 300 * time.Second}
}

// HQ-L09, HQ-L11, HQ-L23, HQ-M4: silence is counted from when the detector saw the count
// change; what the heartbeat's own time says does not matter.
func TestSilence(t *testing.T) {
	d := NewDetector()
	for _, x := range []struct {
		at            int
		heartbeats    int64
		near, expired bool
	}{
		{0, 7, false, false}, {239, 7, false, false}, {240, 7, true, false}, {299, 7, true, false},
		{299, 8, false, false}, {598, 8, true, false}, {599, 8, false, true},
		{600, 3, false, false}, // a count that goes back is a change, too
	} {
		v := d.Cycle(at(x.at), []Silence{group("g", x.heartbeats)})
		if slices.Contains(v.Near, "g") != x.near || slices.Contains(v.Expired, "g") != x.expired {
			t.Errorf("at %d: %+v", x.at, v)
		}
	}
	d.Cycle(at(700), nil) // it is not active
	if v := d.Cycle(at(2000), []Silence{group("g", 3)}); len(v.Expired) > 0 {
		t.Error("a group that comes back is dead at once")
	}
}

// A group with members that are attached is not silent, though nothing has counted them; its
// silence begins when they have left.
func TestMembersAreNotSilent(t *testing.T) {
	d := NewDetector()
	g := group("g", 0)
	for _, x := range []struct {
		at      int
		members bool
		expired bool
	}{{0, false, false}, {300, true, false}, {599, false, false}, {600, false, true}} {
		g.Members = x.members
		if v := d.Cycle(at(x.at), []Silence{g}); len(v.Expired) > 0 != x.expired {
			t.Errorf("at %d: %+v", x.at, v)
		}
	}
}

// Many groups that fall silent at once are not marked, but for those that stay silent for
// a second timeout; three are.
func TestMassDeathIsBraked(t *testing.T) {
	all := func(n, silent int, count int64) (list []Silence) {
		for i := range n {
			g := group(fmt.Sprint(i), count)
			if i < silent {
				g.Heartbeats = 0
			}
			list = append(list, g)
		}
		return list
	}
	for _, x := range []struct {
		groups, silent int
		braked         bool
	}{{1, 1, false}, {3, 3, false}, {4, 4, true}, {10, 3, false}, {10, 4, true}, {100, 30, false}, {100, 31, true}} {
		d := NewDetector()
		d.Cycle(at(0), all(x.groups, x.silent, 0))
		v := d.Cycle(at(300), all(x.groups, x.silent, 1))
		if v.Braked != x.braked || (len(v.Expired) == 0) != x.braked {
			t.Errorf("%d of %d: braked %v, %d expired", x.silent, x.groups, v.Braked, len(v.Expired))
		}
		if v := d.Cycle(at(600), all(x.groups, x.silent, 2)); len(v.Expired) != x.silent {
			t.Errorf("%d of %d: %d expired in the end", x.silent, x.groups, len(v.Expired))
		}
	}
}

// HQ-M9: while heartbeats cannot be stored nobody's silence counts.
func TestBlindness(t *testing.T) {
	d := NewDetector()
	d.Cycle(at(0), []Silence{group("g", 0)})
	d.Blind(at(290))
	if v := d.Cycle(at(589), []Silence{group("g", 0)}); len(v.Expired) > 0 {
		t.Error("it is dead though nobody could have been heard")
	}
	if v := d.Cycle(at(590), []Silence{group("g", 0)}); len(v.Expired) != 1 {
		t.Error("it is not dead though it was silent for its timeout")
	}
}

// HQ-L13: members that come back three times without having done anything are flapping.
func TestFlaps(t *testing.T) {
	if Flaps(2) || !Flaps(3) || !Flaps(4) {
		t.Error("not from 3 on")
	}
}
