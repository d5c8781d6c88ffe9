package figure

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A histogram knows each quantile to within its precision, whatever the values.
func TestQuantiles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, largest := range []int64{1, 63, 64, 127, 128, 5_000, 1_000_000, 3_000_000_000, 1 << 39} {
		var h Histogram
		var values []int64
		for range 5_000 {
			v := r.Int64N(largest + 1)
			values = append(values, v)
			h.Add(time.Duration(v))
		}
		slices.Sort(values)
		for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
			exact := values[int(q*float64(len(values)-1))]
			got := int64(h.Quantile(q))
			if got < exact || float64(got) > float64(exact)*1.016+1 {
				t.Errorf("up to %d: quantile %v is %d, exactly %d", largest, q, got, exact)
			}
		}
		if h.Count() != 5_000 || int64(h.Max()) != values[len(values)-1] {
			t.Errorf("up to %d: %d values, the largest %d", largest, h.Count(), h.Max())
		}
	}
}

func TestQuantileBounds(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Max() != 0 || h.Count() != 0 {
		t.Error("an empty histogram has values")
	}
	h.Add(-time.Second)
	h.Add(24 * time.Hour)
	if h.Quantile(0) != 0 || h.Max() != 1<<maxBits-1 || h.Count() != 2 {
		t.Errorf("from %d to %d, %d values", h.Quantile(0), h.Max(), h.Count())
	}
}

// What two histograms have counted together is what one would have.
func TestJoin(t *testing.T) {
	var all, parts Histogram
	for n := range 2 {
		var part Histogram
		for i := range 100 {
			d := time.Duration(i*i) << (10 * n)
			part.Add(d)
			all.Add(d)
		}
		parts.Join(&part)
	}
	for _, q := range []float64{0, 0.5, 0.99, 1} {
		if parts.Quantile(q) != all.Quantile(q) || parts.Count() != 200 || parts.Max() != all.Max() {
			t.Errorf("%v: %v of %d, want %v", q, parts.Quantile(q), parts.Count(), all.Quantile(q))
		}
	}
}

func TestMedian(t *testing.T) {
	rounds := []Figures{{{"a", "ms", 3}, {"b", "", 1}}, {{"a", "ms", 1}}, {{"a", "ms", 10}, {"b", "", 2}}}
	want := Figures{{"a", "ms", 3}, {"b", "", 1.5}}
	if got := Median(rounds); !slices.Equal(got, want) {
		t.Errorf("medians %v, want %v", got, want)
	}
}

func report(scenario string, value float64) *Report {
	rounds := []Figures{{{"ack p50", "ms", value}, {"failed", "", 0}}, {{"ack p50", "ms", value}, {"failed", "", 0}}}
	return &Report{Version: Version, Scenario: scenario, Options: []string{"--rate=1"}, Rounds: rounds,
		Median: Median(rounds)}
}

// A report that was written and read again is compared with a later one.
func TestCompare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	if err := report("paced", 2).Write(path); err != nil {
		t.Fatal(err)
	}
	earlier, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Compare(&out, earlier, report("paced", 3)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1.50 ×", "2.00", "3.00", "–"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "not the same options") {
		t.Error("the options are the same")
	}
	later := report("paced", 3)
	later.Options = nil
	if err := Compare(&out, earlier, later); err != nil || !strings.Contains(out.String(), "not the same options") {
		t.Errorf("other options are not named: %v", err)
	}
	if err := Compare(&out, earlier, report("closed", 3)); err == nil {
		t.Error("another scenario is compared")
	}
	later.Median = Figures{{"other", "", 1}}
	if err := Compare(&out, earlier, later); err == nil {
		t.Error("reports without a common figure are compared")
	}
}

func TestPrint(t *testing.T) {
	var out strings.Builder
	r := report("paced", 12.34)
	r.Rounds[0] = r.Rounds[0][:1]
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"median", "12.3", "ack p50", "–"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
