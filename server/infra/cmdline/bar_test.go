package cmdline

import (
	"bytes"
	"testing"
	"time"
)

// Where nobody looks, a bar is a line for each tenth.
func TestBarWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	b := NewBar(&out)
	b.Show(0, 0, "counting")
	for done := range int64(31) {
		b.Show(done, 30, "events")
	}
	b.End()
	want := "  0%  counting\n 10%  events\n 20%  events\n 30%  events\n 40%  events\n 50%  events\n 60%  events\n" +
		" 70%  events\n 80%  events\n 90%  events\n 99%  events\n"
	if out.String() != want {
		t.Errorf("%q", out.String())
	}
}

func TestLeft(t *testing.T) {
	for _, c := range []struct {
		took        time.Duration
		done, total int64
		want        time.Duration
	}{
		{10 * time.Second, 25, 100, 30 * time.Second}, {time.Millisecond, 25, 100, 0}, {time.Minute, 0, 100, 0},
		{time.Minute, 100, 100, 0}, {time.Minute, 5, 0, 0},
	} {
		if got := Left(c.took, c.done, c.total); got != c.want {
			t.Errorf("%v for %d of %d: %v, expected %v", c.took, c.done, c.total, got, c.want)
		}
	}
}
