package explorer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/parley-chat/parley/server/client/conformance"
	"github.com/parley-chat/parley/server/client/device"
)

// machine is the machine of a device that starts, recorded if the world's devices are.
func (d *phone) machine(m *device.Machine) *conformance.Recorder {
	if d.tape != nil {
		return d.tape.Restart(m)
	}
	return conformance.Record(m, d.scenario, d.cfg.Clock)
}

// recording has a device recorded if the world's are. Such a device waits without chance,
// as every client does that goes through the scenario.
func (w *world) recording(d *phone) {
	if w.bug.tapes == nil {
		return
	}
	d.cfg.Rand = func() float64 { return conformance.Random }
	d.scenario = &conformance.Scenario{User: d.user, PageSize: d.cfg.PageSize, SubscribeFirst: d.cfg.SubscribeFirst,
		Silence: d.cfg.Silence.Milliseconds(), Name: fmt.Sprintf("explorer-%d-%s", w.bug.seed, d.name)}
	*w.bug.tapes = append(*w.bug.tapes, d.scenario)
}

// recorded runs schedules from a seed on and returns what their devices went through. A
// schedule is short: its end, when everything comes to rest, is as long as it is.
func recorded(t *testing.T, first, n uint64, direct bool) (list []*conformance.Scenario) {
	t.Helper()
	pool := &tasks{}
	defer pool.close()
	for seed := first; seed < first+n; seed++ {
		b := &bug{tapes: &list, seed: seed, direct: direct}
		steps := minSteps + int(seed%80)
		if direct { // until the other one reads
			steps *= 3
		}
		if r := explore(newChooser(seed), pool, b, steps, false); r.failed != "" {
			t.Fatalf("seed %d: %s", seed, r.failed)
		}
	}
	return list
}

// What a device went through, another machine goes through in the same way: the form of
// scenarios leaves nothing out.
func TestRecordedDevices(t *testing.T) {
	list := append(recorded(t, 1, 40, false), recorded(t, 1, 10, true)...)
	if len(list) < 100 {
		t.Fatalf("%d devices", len(list))
	}
	for _, s := range list {
		if err := conformance.Play(again(t, s), conformance.Mistake{}); err != nil {
			t.Error(err)
		}
	}
}

// again is a scenario after its way through JSON.
func again(t *testing.T, s *conformance.Scenario) *conformance.Scenario {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	out := &conformance.Scenario{}
	if err := json.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// How many scenarios of worlds the set has, how long they may be, and in how many of them
// everything is that any of them shows.
const setSize, minBytes, maxBytes, often = 340, 3000, 20_000, 10

// Writes the set of scenarios with PARLEY_CONFORMANCE=update, and otherwise nothing: a set
// that was once recorded stays true when other schedules come from the same seeds.
func TestConformanceSet(t *testing.T) {
	if os.Getenv("PARLEY_CONFORMANCE") != "update" {
		t.Skip("PARLEY_CONFORMANCE=update writes the set")
	}
	// First those who are shown what the other has read, or the rest leaves no room.
	direct := slices.DeleteFunc(recorded(t, 3001, 300, true), func(s *conformance.Scenario) bool {
		b, err := json.Marshal(s)
		return err != nil || !bytes.Contains(b, []byte("peerReadSequence"))
	})
	set := chosen(t, append(direct[:20], recorded(t, 1, 3000, false)...))
	if err := conformance.Write("../../client/conformance/"+conformance.Explored, set); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d scenarios", len(set))
}

// chosen are scenarios in which everything happens often enough, and as many others as the
// set has room for.
func chosen(t *testing.T, list []*conformance.Scenario) (out []*conformance.Scenario) {
	t.Helper()
	seen, taken := map[string]int{}, map[*conformance.Scenario]bool{}
	take := func(only func(s *conformance.Scenario) bool) {
		for _, s := range list {
			b, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			if len(out) == setSize || taken[s] || len(b) < minBytes || len(b) > maxBytes || !only(s) {
				continue
			}
			taken[s] = true
			out = append(out, s)
			for f := range features(t, s) {
				seen[f]++
			}
		}
	}
	take(func(s *conformance.Scenario) bool {
		rare := false
		for f := range features(t, s) {
			rare = rare || seen[f] < often
		}
		return rare
	})
	t.Logf("%d scenarios have %d kinds of things", len(out), len(seen))
	take(func(*conformance.Scenario) bool { return true })
	return out
}

// features are the kinds of things that happen in a scenario: what came, and what was wanted
// then.
func features(t *testing.T, s *conformance.Scenario) map[string]bool {
	t.Helper()
	out, kinds := map[string]bool{}, map[int64]string{}
	for _, step := range s.Steps {
		var came []string
		for _, in := range step.Do {
			what := in.Do + " " + kinds[in.Call]
			if in.Failure != nil {
				what += " " + in.Failure.Code + " " + in.Failure.Reason
			}
			came = append(came, what)
			if in.Message != nil {
				came = append(came, fields(t, what, in.Message)...)
			}
		}
		for _, c := range step.Calls {
			kinds[c.Call] = c.Kind
			for _, what := range came {
				out[what+", then "+c.Kind] = true
			}
		}
		for _, e := range step.Events {
			out[fmt.Sprintf("event %t %s %s", e.Connected, e.Stopped, e.Why)] = true
		}
		for _, what := range came {
			out[what] = true
		}
	}
	return out
}

// fields are the names in a message, with values of flags and kinds.
func fields(t *testing.T, what string, raw json.RawMessage) (out []string) {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	frames, _ := v["frames"].([]any)
	for _, f := range frames {
		body, _ := f.(map[string]any)
		_, versioned := body["version"]
		for name, b := range body {
			inner, _ := b.(map[string]any)
			if inner != nil {
				_, peer := inner["peerReadSequence"]
				out = append(out, fmt.Sprintf("%s %s %t %v %v %v %t", what, name, versioned,
					inner["kind"], inner["code"], inner["full"], peer))
			}
		}
	}
	for name, b := range v {
		if name != "frames" {
			flag, _ := b.(bool)
			out = append(out, fmt.Sprintf("%s %s %t", what, name, flag))
		}
	}
	return out
}
