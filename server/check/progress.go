package check

import (
	"fmt"
	"io"
	"time"
)

// Progress is reported every progressEvery; the clock is read once in stride rows.
const (
	progressEvery = 5 * time.Second
	stride        = 4096
)

// progress reports the progress of a check.
type progress struct {
	out             io.Writer
	clock           func() time.Time
	began, reported time.Time
	step            string
	rows, total     int64
}

// row counts a row.
func (p *progress) row() {
	if p.rows++; p.rows%stride != 0 {
		return
	}
	now := p.clock()
	if now.Sub(p.reported) < progressEvery {
		return
	}
	p.reported = now
	rate := float64(p.rows) / now.Sub(p.began).Seconds()
	left := "so far"
	if p.total > p.rows {
		left = fmt.Sprintf("of about %d, about %s left", p.total,
			(time.Duration(float64(p.total-p.rows)/rate) * time.Second).Round(time.Second))
	}
	fmt.Fprintf(p.out, "checking %s: %d rows %s (%.0f rows/s)\n", p.step, p.rows, left, rate)
}

// bytes reports the progress of reading files.
func (p *progress) bytes(done, total int64, began time.Time) {
	now := p.clock()
	if now.Sub(p.reported) < progressEvery || done == 0 {
		return
	}
	p.reported = now
	took := now.Sub(began)
	left := time.Duration(float64(took) * float64(total-done) / float64(done))
	fmt.Fprintf(p.out, "checking %s: %d of %d MB, about %s left\n", p.step, done>>20, total>>20, left.Round(time.Second))
}
