package probe

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

const barWidth = 20

// Progress says each second how far a run is: on a terminal in one line that changes,
// elsewhere in a line each.
type Progress struct {
	w        io.Writer
	quiet    bool
	terminal bool
}

// NewProgress writes to w, nothing if quiet.
func NewProgress(w io.Writer, quiet bool) *Progress {
	p := &Progress{w: w, quiet: quiet}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// During shows a part of a run until the returned function is called. It takes about total,
// if that is known; line, if there is one, says where it stands.
func (p *Progress) During(name string, total time.Duration, line func(context.Context) string) (stop func()) {
	if p.quiet {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	began := time.Now()
	show := func() {
		text := ""
		if line != nil {
			text = line(ctx)
		}
		p.print(name, time.Since(began), total, text)
	}
	wg.Go(func() { wait.Every(ctx, time.Second, show) })
	return func() {
		cancel()
		wg.Wait()
		if p.terminal {
			fmt.Fprint(p.w, "\r\x1b[K")
		}
	}
}

func (p *Progress) print(name string, at, total time.Duration, text string) {
	bar := ""
	if total > 0 && p.terminal {
		full := min(barWidth, int(barWidth*at/total))
		bar = "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "] "
	}
	text = fmt.Sprintf("%-10s %s%3.0f s %s", name, bar, at.Seconds(), text)
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K"+text)
		return
	}
	fmt.Fprintln(p.w, strings.TrimRight(text, " "))
}
