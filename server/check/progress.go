package check

import (
	"fmt"
	"io"
	"time"
)

// Progress is told every tellEvery, and looked at after stride rows.
const (
	tellEvery = 5 * time.Second
	stride    = 4096
)

// progress tells how far a check has come.
type progress struct {
	out         io.Writer
	clock       func() time.Time
	began, told time.Time
	step        string
	rows, total int64
}

// row counts a row.
func (p *progress) row() {
	if p.rows++; p.rows%stride != 0 {
		return
	}
	now := p.clock()
	if now.Sub(p.told) < tellEvery {
		return
	}
	p.told = now
	rate := float64(p.rows) / now.Sub(p.began).Seconds()
	left := "so far"
	if p.total > p.rows {
		left = fmt.Sprintf("of about %d, about %s left", p.total, (time.Duration(float64(p.total-p.rows)/rate) * time.Second).Round(time.Second))
	}
	fmt.Fprintf(p.out, "checking %s: %d rows %s (%.0f rows/s)\n", p.step, p.rows, left, rate)
}

// bytes tells of files that are read.
func (p *progress) bytes(done, total int64, began time.Time) {
	now := p.clock()
	if now.Sub(p.told) < tellEvery || done == 0 {
		return
	}
	p.told = now
	took := now.Sub(began)
	left := time.Duration(float64(took) * float64(total-done) / float64(done))
	fmt.Fprintf(p.out, "checking %s: %d of %d MB, about %s left\n", p.step, done>>20, total>>20, left.Round(time.Second))
}
