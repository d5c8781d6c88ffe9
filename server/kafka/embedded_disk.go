package kafka

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// failureCounts is how long a write that failed explains what clients are refused.
const failureCounts = 10 * time.Second

// ErrNoSpace says that the disk of the embedded log is full.
var ErrNoSpace = errors.New("kafka: no space left on the disk of the event log")

// diskLog gets what the embedded broker logs. The broker answers a write that fails with
// UNKNOWN_SERVER_ERROR, and logs the cause only.
//
// Concurrency: it is safe for concurrent use.
type diskLog struct {
	b *Broker

	mu   sync.Mutex
	full time.Time // when a write last found no room; monotonic
}

// Logf implements kfake.Logger.
func (l *diskLog) Logf(level kfake.LogLevel, format string, args ...any) {
	if level > kfake.LogLevelWarn || !strings.HasPrefix(format, "persist") {
		return
	}
	for _, a := range args {
		if err, ok := a.(error); ok && errors.Is(err, syscall.ENOSPC) {
			l.mu.Lock()
			l.full = time.Now()
			l.mu.Unlock()
		}
	}
	if l.b.cfg.Logger != nil {
		l.b.cfg.Logger.Error("the event log cannot be written", "dir", l.dir(), "error", fmt.Sprintf(format, args...))
	}
}

func (l *diskLog) dir() string {
	if dir, err := filepath.Abs(l.b.cfg.Dir); err == nil {
		return dir
	}
	return l.b.cfg.Dir
}

// Explain adds ErrNoSpace and the directory to an error of publishing if the log has found no
// room lately. A *PartitionError stays one.
func (b *Broker) Explain(err error) error {
	b.disk.mu.Lock()
	full := b.disk.full
	b.disk.mu.Unlock()
	if err == nil || full.IsZero() || time.Since(full) > failureCounts {
		return err
	}
	cause := fmt.Errorf("%w: %s", ErrNoSpace, b.disk.dir())
	if refused := (*PartitionError)(nil); errors.As(err, &refused) {
		explained := *refused
		explained.Err = fmt.Errorf("%w: %w", cause, refused.Err)
		return &explained
	}
	return fmt.Errorf("%w: %w", cause, err)
}
