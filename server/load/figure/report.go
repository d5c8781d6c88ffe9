package figure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// Version is the form of reports that this program writes and reads.
const Version = 1

const maxReport = 4 << 20 // bytes of a file

// Figure is one result.
type Figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
}

// Figures are the results of a round, in the order in which they are printed.
type Figures []Figure

// Add appends a figure.
func (f *Figures) Add(name, unit string, value float64) {
	*f = append(*f, Figure{name, unit, value})
}

// AddQuantiles appends what users feel of a histogram, in milliseconds; nothing of one
// without values.
func (f *Figures) AddQuantiles(name string, h *Histogram) {
	if h.Count() == 0 {
		return
	}
	for _, q := range []struct {
		name  string
		share float64
	}{{"p50", 0.50}, {"p90", 0.90}, {"p99", 0.99}, {"p99.9", 0.999}} {
		f.Add(name+" "+q.name, "ms", milliseconds(h.Quantile(q.share)))
	}
	f.Add(name+" max", "ms", milliseconds(h.Max()))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Value returns a figure by its name.
func (f Figures) Value(name string) (float64, bool) {
	i := slices.IndexFunc(f, func(g Figure) bool { return g.Name == name })
	if i < 0 {
		return 0, false
	}
	return f[i].Value, true
}

// Median is the median of each figure of the rounds that have it.
func Median(rounds []Figures) (median Figures) {
	for _, round := range rounds {
		for _, g := range round {
			if _, ok := median.Value(g.Name); !ok {
				median.Add(g.Name, g.Unit, medianOf(g.Name, rounds))
			}
		}
	}
	return median
}

func medianOf(name string, rounds []Figures) float64 {
	var values []float64
	for _, round := range rounds {
		if v, ok := round.Value(name); ok {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// Machine is where a measurement was made.
type Machine struct {
	OS         string  `json:"os"`
	Processors int     `json:"processors"`
	Model      string  `json:"model,omitempty"`
	Go         string  `json:"go"`
	Disk       string  `json:"disk,omitempty"`         // directory that fsync was measured in
	FsyncP50   float64 `json:"fsync_p50_ms,omitempty"` // of 4 KB appended
	FsyncP99   float64 `json:"fsync_p99_ms,omitempty"`
}

// Report is a measurement.
type Report struct {
	Version  int       `json:"version"`
	Scenario string    `json:"scenario"`
	Options  []string  `json:"options"` // flags by which it can be repeated
	Server   string    `json:"server"`  // address
	Began    time.Time `json:"began"`
	Machine  Machine   `json:"machine"`
	Rounds   []Figures `json:"rounds"`
	Median   Figures   `json:"median"`
}

// Write writes a report as a file.
func (r *Report) Write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Read reads a report. Errors name the file.
func Read(path string) (*Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxReport+1))
	if err != nil {
		return nil, err
	}
	var r Report
	switch err := json.Unmarshal(text, &r); {
	case len(text) > maxReport:
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxReport)
	case err != nil:
		return nil, fmt.Errorf("%s is no report: %w", path, err)
	case r.Version != Version:
		return nil, fmt.Errorf("%s: a report of form %d; this program reads %d", path, r.Version, Version)
	case len(r.Median) == 0:
		return nil, fmt.Errorf("%s: a report without figures", path)
	}
	return &r, nil
}

// Print writes a table: the median, and each round if there are several.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(r.Rounds) > 1 {
		fmt.Fprint(t, "\tmedian\t")
		for i := range r.Rounds {
			fmt.Fprintf(t, "%d\t", i+1)
		}
		fmt.Fprintln(t, "\t")
	}
	for _, g := range r.Median {
		fmt.Fprintf(t, "%s\t%s\t", g.Name, Format(g.Value))
		for _, round := range r.Rounds {
			v, ok := round.Value(g.Name)
			switch {
			case len(r.Rounds) == 1:
			case ok:
				fmt.Fprintf(t, "%s\t", Format(v))
			default:
				fmt.Fprint(t, "–\t")
			}
		}
		fmt.Fprintf(t, "%s\t\n", g.Unit)
	}
	return t.Flush()
}

// Compare writes the medians of two reports of one scenario side by side, with what the later
// one is of the earlier one.
func Compare(w io.Writer, earlier, later *Report) error {
	if earlier.Scenario != later.Scenario {
		return fmt.Errorf("the earlier report is of %s, not of %s", earlier.Scenario, later.Scenario)
	}
	if !slices.Equal(earlier.Options, later.Options) {
		fmt.Fprintf(w, "not the same options: %v before, %v now\n", earlier.Options, later.Options)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tearlier\tnow\tratio\t\t\n")
	common := 0
	for _, g := range later.Median {
		before, ok := earlier.Median.Value(g.Name)
		if !ok {
			continue
		}
		common++
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t\n", g.Name, Format(before), Format(g.Value), ratio(before, g.Value), g.Unit)
	}
	if common == 0 {
		return errors.New("the reports have no figure in common")
	}
	return t.Flush()
}

func ratio(before, now float64) string {
	if before == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f ×", now/before)
}

// Format prints a value with three digits that mean something.
func Format(v float64) string {
	switch size := max(v, -v); {
	case size >= 100 || size == 0:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case size >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case size >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
}
