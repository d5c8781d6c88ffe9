package cmdline

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Bar shows how far something is: as a bar on a terminal, and elsewhere as a line whenever it
// has moved by a tenth. It belongs to one goroutine.
type Bar struct {
	w        io.Writer
	terminal bool
	tenth    int64 // shown last, plus 1
	drawn    bool
}

const barWidth = 30

// NewBar makes a Bar.
func NewBar(w io.Writer) *Bar { return &Bar{w: w, terminal: Terminal(w)} }

// Show moves the bar; a total of 0 is not known yet.
func (b *Bar) Show(done, total int64, note string) {
	line := fmt.Sprintf("%3d%%  %s", Percent(done, total), note)
	done, total = min(done, total), max(total, 1)
	if b.terminal {
		n := int(barWidth * done / total)
		fmt.Fprintf(b.w, "\r\x1b[K[%s%s] %s", strings.Repeat("#", n), strings.Repeat(".", barWidth-n), line)
		b.drawn = true
	} else if tenth := 10*done/total + 1; tenth != b.tenth {
		b.tenth = tenth
		fmt.Fprintln(b.w, line)
	}
}

// End ends the line of the bar.
func (b *Bar) End() {
	if b.drawn {
		fmt.Fprintln(b.w)
		b.drawn = false
	}
}

// Percent is how much of a total is done, at most 99: a complete job is not shown as a
// percentage.
func Percent(done, total int64) int64 {
	if total <= 0 {
		return 0
	}
	return min(100*done/total, 99)
}

// Left is how long something may still take that has taken a time so far, at the pace it had;
// 0 if that cannot be said.
func Left(took time.Duration, done, total int64) time.Duration {
	if done <= 0 || took < time.Second || total <= done {
		return 0
	}
	return time.Duration(float64(took) * float64(total-done) / float64(done)).Round(time.Second)
}
