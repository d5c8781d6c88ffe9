package operations

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/topic/refusal"
)

// JobKind names a job that operators see.
type JobKind int

// The jobs that operators see.
const (
	Trim          JobKind = iota // removes messages that no group needs, and moves zombies on
	Detection                    // finds groups that have fallen silent
	Subscriptions                // deletes subscriptions that ended long ago
	kinds
)

// String returns the name, for logs.
func (k JobKind) String() string { return [...]string{"trim", "detection", "subscriptions"}[k] }

// stopTime is how long what runs may take to end when it is to stop.
const stopTime = 30 * time.Second

// JobReport is what a run of a job did.
type JobReport struct {
	Began   time.Time
	Took    time.Duration
	Topics  int64  // checked
	Done    int64  // messages removed, groups marked dead, or subscriptions deleted
	Failed  int64  // topics or groups for which it failed
	Problem string // why it did nothing, or what failed first
}

// JobStatus is when a job runs, and what it did.
type JobStatus struct {
	Kind    JobKind
	Every   time.Duration
	Batch   int64 // of Trim
	Running bool
	Last    JobReport // Began is zero before the first run
	Next    time.Time
}

// task is a job that operators see. It runs once at a time.
type task struct {
	cycle func(ctx context.Context, r *run)
	// asks is whether the cycle removes what the wall clock says is old.
	asks bool

	mu      sync.Mutex
	running bool
	last    JobReport
	next    time.Time
	runs    int64
	took    time.Duration // of all runs
}

// set notes when the task runs next.
func (t *task) set(next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = next
}

// run is a run in progress.
type run struct {
	JobReport
	over func() bool // it is to stop after what it is in the middle of
}

// failed records a failure. The run continues with what comes next.
func (r *run) failed(err error) {
	r.Failed++
	if r.Problem == "" {
		r.Problem = err.Error()
	}
}

// distrust is why a run does nothing while the clock is not to be believed.
const distrust = "the clock was set: nothing is removed until it is set back, or has stayed for a day, " +
	"or the process restarts"

// do runs a task, unless it runs already. When stop ends, the run has stopTime to end. Jobs
// that remove do nothing while the clock is not trusted.
func (j *Jobs) do(stop context.Context, k JobKind, trusted bool) (JobReport, bool) {
	t := j.tasks[k]
	t.mu.Lock()
	if t.running {
		t.mu.Unlock()
		return JobReport{}, false
	}
	t.running = true
	t.mu.Unlock()
	ctx, done := graceful(stop)
	defer done()
	r := &run{JobReport: JobReport{Began: j.engine.Clock()}, over: func() bool { return stop.Err() != nil }}
	begin := time.Now()
	if t.asks && !trusted {
		r.Problem = distrust
	} else {
		t.cycle(ctx, r)
	}
	r.Took = time.Since(begin)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running, t.last = false, r.JobReport
	t.runs++
	t.took += r.Took
	return r.JobReport, true
}

// graceful returns a context that ends stopTime after another one.
func graceful(stop context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(stop))
	var timer *time.Timer
	var mu sync.Mutex
	detach := context.AfterFunc(stop, func() {
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(stopTime, cancel)
	})
	return ctx, func() {
		detach()
		cancel()
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
	}
}

// RunNow runs a job, and returns when it is done. If ctx ends, the run ends early; its
// completed changes stay. Error: refusal.JobRunning.
func (j *Jobs) RunNow(ctx context.Context, k JobKind) (JobReport, error) {
	r, ok := j.do(ctx, k, j.trusts())
	if !ok {
		return r, refusal.New(refusal.JobRunning, "the job runs already: try again when it is done")
	}
	if err := ctx.Err(); err != nil {
		return r, fmt.Errorf("the run was ended early: %w", err)
	}
	return r, nil
}

// Retain runs the jobs that remove, as if the clock had always been what it is now.
func (j *Jobs) Retain(ctx context.Context) {
	for _, k := range []JobKind{Trim, Subscriptions} {
		_, _ = j.do(ctx, k, true) // the cause is in the log
	}
}

// Status returns all jobs.
func (j *Jobs) Status() (schedule string, list []JobStatus) {
	s := j.schedule()
	for k := range kinds {
		t := j.tasks[k]
		t.mu.Lock()
		st := JobStatus{Kind: k, Running: t.running, Last: t.last, Next: t.next}
		t.mu.Unlock()
		switch k {
		case Trim:
			st.Every, st.Batch = s.Trim, s.Batch
		case Detection:
			st.Every = time.Duration(j.every.Load())
		default:
			st.Every = 24 * time.Hour
		}
		list = append(list, st)
	}
	return s.Name, list
}

// Trims returns how many trims there were, and how long they took in all.
func (j *Jobs) Trims() (runs int64, took time.Duration) {
	t := j.tasks[Trim]
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.runs, t.took
}

// Slowest returns how long the longest of the jobs' last runs took.
func (j *Jobs) Slowest() (highest time.Duration) {
	for _, t := range j.tasks {
		t.mu.Lock()
		highest = max(highest, t.last.Took)
		t.mu.Unlock()
	}
	return highest
}
