package opsctl

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// notes is the log of a command that runs for long: what its client tries again or could
// not do, in lines on stderr.
func (c *call) notes() *slog.Logger { return slog.New(&notes{out: c.stderr}) }

// notes writes warnings, and those that follow each other with the same text once.
type notes struct {
	out io.Writer

	mu   sync.Mutex
	last string
}

// Enabled implements slog.Handler.
func (n *notes) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle implements slog.Handler.
func (n *notes) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(strings.TrimPrefix(r.Message, "topic: "))
	r.Attrs(func(a slog.Attr) bool {
		if v := a.Value.Any(); a.Key != againIn {
			fmt.Fprintf(&b, ", %s %v", a.Key, v)
		}
		return true
	})
	line := strings.ReplaceAll(b.String(), "\n", " ")
	n.mu.Lock()
	defer n.mu.Unlock()
	if line == n.last {
		return nil
	}
	n.last = line
	_, err := fmt.Fprintln(n.out, line)
	return err
}

// againIn is the attribute with the pause before the next try, which differs each time.
const againIn = "again_in"

// WithAttrs implements slog.Handler. The command line shows the attributes that all lines
// have in common.
func (n *notes) WithAttrs([]slog.Attr) slog.Handler { return n }

// WithGroup implements slog.Handler.
func (n *notes) WithGroup(string) slog.Handler { return n }
