package gates

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// machine holds rates up to a limit, and notes what it is asked for.
type machine struct {
	limit float64
	asked []float64
}

func (m *machine) try(rate float64) held {
	m.asked = append(m.asked, rate)
	h := held{rate: rate, published: rate}
	if rate > m.limit {
		h.broken = []string{fmt.Sprintf("%.0f is too much", rate)}
	}
	return h
}

// The claimed rate comes first; the limit is found between the highest rate that holds and
// the lowest that does not, which lie close together (HQ-W03).
func TestSearch(t *testing.T) {
	for _, c := range []struct {
		limit    float64
		asked    []float64
		atClaim  string
		contains string
	}{
		{35_000, []float64{10_000, 20_000, 40_000, 28_280}, "holds: ", "28280/s: "},
		{3_000, []float64{10_000, 5_000, 2_500, 3_540}, "does not hold here: 10000 is too much", "2500/s: "},
		{10, []float64{10_000, 5_000, 2_500, 1_250, 625, 312.5, 156.25, 78.125}, "does not hold",
			"below 78/s: 78 is too much"},
		{1e9, []float64{10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 640_000, 1_280_000}, "holds: ", "above 1280000/s"},
	} {
		m := &machine{limit: c.limit}
		s := search(10_000, 8, m.try)
		if !slices.Equal(m.asked, c.asked) {
			t.Errorf("limit %.0f: tried %v, want %v", c.limit, m.asked, c.asked)
		}
		if !strings.HasPrefix(s.atClaim(), c.atClaim) || !strings.HasPrefix(s.limit(), c.contains) {
			t.Errorf("limit %.0f: %q, %q", c.limit, s.atClaim(), s.limit())
		}
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Hold: time.Second}, ""},
		{Options{Hold: time.Second, Gates: []string{"W01", "W04"}}, ""},
		{Options{Hold: time.Second, Gates: []string{"W99"}}, `unknown gate "W99"`},
		{Options{Hold: time.Millisecond}, "--hold must be"},
	} {
		err := c.o.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
	for _, name := range Names() {
		if !strings.Contains(Help("%s"), name) {
			t.Errorf("the help does not name %s", name)
		}
	}
}

// A claimed rate that breaks a threshold breaks its gate, unless the machine had nothing left for it (HQ-W01, HQ-W02)
// or it is expected to fall short (HQ-W03). What is lost breaks it at any rate, on any machine.
func TestJudge(t *testing.T) {
	holds, slow := held{rate: 10_000}, held{rate: 10_000, broken: []string{"fetch p95 is 20 ms"}}
	busy := held{rate: 10_000, busy: busyShare, broken: slow.broken}
	full := held{rate: 10_000, writes: 2 * writeLimit, broken: slow.broken}
	lost := held{rate: 20_000, busy: 1, lost: []string{"3 messages do not arrive"}}
	for name, c := range map[string]struct {
		tries          []held
		fallsShort     bool
		broken, missed int
	}{
		"it holds":                       {tries: []held{holds, slow}},
		"a threshold breaks":             {tries: []held{slow, holds}, broken: 1},
		"the processors are busy":        {tries: []held{busy}, missed: 1},
		"the disk is":                    {tries: []held{full}, missed: 1},
		"as expected":                    {tries: []held{slow}, fallsShort: true},
		"messages are lost":              {tries: []held{holds, lost}, broken: 1},
		"lost where it falls short":      {tries: []held{slow, lost}, fallsShort: true, broken: 1},
		"lost on a machine that is busy": {tries: []held{busy, lost}, broken: 1, missed: 1},
	} {
		var v verdict
		v.judge("4 groups", searched{tries: c.tries}, c.fallsShort)
		if len(v.broken) != c.broken || len(v.missed) != c.missed {
			t.Errorf("%s: broken %q, missed %q", name, v.broken, v.missed)
		}
	}
}

// A release is decided on by every blocking gate (HQ-W08).
func TestDecide(t *testing.T) {
	ran := map[string]verdict{}
	for _, name := range []string{"W01", "W02", "W03-watermark", "W03-100", "W04", "W05"} {
		if got, want := decide(ran), name+" has not run"; !strings.HasPrefix(got, "no: ") || !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
		ran[name] = verdict{}
	}
	ran["W03"], ran["hot-topic"] = verdict{broken: []string{"x"}}, verdict{broken: []string{"x"}}
	if got := decide(ran); got != "yes" {
		t.Errorf("all blocking gates hold: %q", got)
	}
	ran["W02"], ran["W05"] = verdict{missed: []string{"x"}}, verdict{broken: []string{"x"}}
	if got := decide(ran); got != "no: W02 is not reached, W05 is broken" {
		t.Errorf("%q", got)
	}
}
