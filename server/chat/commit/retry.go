package commit

import (
	"context"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
)

// Waits between attempts, with full jitter.
const (
	firstWait = 5 * time.Millisecond
	maxWait   = time.Second
)

// A chat that always has something to send would keep its head to itself: this process
// knows a new head as soon as it has made it, another one only when its own plan failed on
// it, and by then the next one is on its way. So after a quantum of consecutive plans the
// chat pauses for as long as two plans take, in which another process commits its own plan.
// The process that loses makes enough attempts without a wait that one falls into a pause.
// The commands that wait here meanwhile share the next plan.
const (
	quantum  = 8
	attempts = quantum + 4 // without a wait
	maxPause = 100 * time.Millisecond
)

// Yield lets other processes at a chat after a quantum of consecutive plans, of which
// the last ended at lastEnd and took lastDuration. It reports whether it is a new quantum.
func (c *Committer) Yield(ctx context.Context, consecutive int, lastEnd time.Time, lastDuration time.Duration) bool {
	if !c.cfg.Shared || consecutive < quantum {
		return false
	}
	if pause := min(2*lastDuration, maxPause) - c.cfg.Clock().Sub(lastEnd); pause > 0 {
		_ = c.cfg.Sleep(ctx, pause) // if the context ends here, the next wait says so
	}
	return true
}

// Backoff slows down the attempts of a command that keeps losing against another
// process, and ends them.
type Backoff struct {
	committer *Committer
	deadline  time.Time
	attempts  int
}

// Backoff begins the attempts of a command.
func (c *Committer) Backoff() *Backoff {
	return &Backoff{committer: c, deadline: c.cfg.Clock().Add(PlanAge)}
}

// Wait is to be called after each plan that failed on a stale fact. The first
// repetitions do not wait, because the present facts came with the failure; nor do,
// where other processes write too, those after a wait, which begin on facts that are old
// again. Errors: those of the contexts, and store.ErrConflict at the end.
func (b *Backoff) Wait(callerCtx, ctx context.Context) error {
	cfg := b.committer.cfg
	b.attempts++
	switch {
	case callerCtx.Err() != nil:
		return callerCtx.Err()
	case !cfg.Clock().Before(b.deadline):
		return fmt.Errorf("chat: %w: the chat is contended", store.ErrConflict)
	case cfg.Shared && b.attempts%attempts != 0, b.attempts <= 2:
		return nil
	}
	waits := b.attempts - 3
	if cfg.Shared {
		waits = b.attempts / attempts
	}
	return cfg.Sleep(ctx, wait.Jittered(firstWait, maxWait, waits))
}
