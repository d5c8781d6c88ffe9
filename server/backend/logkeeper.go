package backend

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
)

// How often the log is trimmed: regularly, and while it has no room for some records or the
// last trim failed.
const (
	trimEvery     = 30 * time.Second
	trimFullEvery = 5 * time.Second
)

// unmeasured is the room of a kind while the log cannot be measured: an error is no proof that
// the log is full. The reserve of the disk still bounds it.
const unmeasured = math.MaxInt64 / 2

// ErrLogFull says that the embedded log has no room for records of a kind.
var ErrLogFull = errors.New("backend: the event log has no room for more records of this kind")

// LogKeeper keeps the embedded log within its cap. It is safe for concurrent use.
type LogKeeper struct {
	trim   func(context.Context) (map[kafka.Kind]int64, error)
	bytes  func() int64
	log    *slog.Logger
	wake   chan struct{} // trim now
	failed atomic.Bool   // the last trim did
	kinds  map[kafka.Kind]*room
}

// room is what the log has for records of a kind.
type room struct {
	bytes atomic.Int64
	low   atomic.Int64 // below this the log is trimmed at once, before there is no room
	full  atomic.Bool  // as the last trim that could measure the log left it
}

// LogKeeper returns what keeps the log of an embedded backend within its cap. Nothing has
// room before its Run is ready.
func (e *Backend) LogKeeper(log *slog.Logger) *LogKeeper {
	return newLogKeeper(e.trimLog, e.LogBytes, log)
}

// trimLog trims the log by the versions of topics as they are now: a version that was retired
// while the process runs has no readers to wait for. If the versions cannot be read, the last ones count.
func (e *Backend) trimLog(ctx context.Context) (map[kafka.Kind]int64, error) {
	s, err := versions.Load(ctx, e.Store)
	if err == nil {
		e.events.SetReaders(s.All())
	}
	left, trimErr := e.events.Trim(ctx)
	return left, errors.Join(err, trimErr)
}

func newLogKeeper(
	trim func(context.Context) (map[kafka.Kind]int64, error), bytes func() int64, log *slog.Logger,
) *LogKeeper {
	k := &LogKeeper{trim: trim, bytes: bytes, log: log, wake: make(chan struct{}, 1), kinds: map[kafka.Kind]*room{}}
	for _, kind := range kafka.Kinds() {
		k.kinds[kind] = &room{}
	}
	return k
}

// Measure registers whether trims fail.
func (k *LogKeeper) Measure(m *telemetry.Metrics) {
	m.Gauge(telemetry.LogTrimFailed, "1 while the embedded event log, or a part of it, cannot be trimmed.",
		func() float64 { return indicator(k.failed.Load()) })
}

// indicator is the value of a metric that says whether something is so.
func indicator(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Full reports whether the last trim left no room for records of a kind.
func (k *LogKeeper) Full(kind kafka.Kind) bool { return k.kinds[kind].full.Load() }

// Reserve takes room for records of a kind. ErrLogFull says that none may be published now. The
// next trim comes at once when half of the room is used up, unless the last trim left none of
// it: relays ask all the time while they wait, and would have the log trimmed as often.
//
// A trim may measure the log before reserved records are written to it, and set the room
// afterwards. They then count from the next trim on. So the log may exceed a share by what
// is published at a time, not by more.
func (k *LogKeeper) Reserve(kind kafka.Kind, bytes int64) error {
	r := k.kinds[kind]
	left := r.bytes.Load()
	if left > 0 {
		r.bytes.Add(-bytes)
	}
	if left-bytes < r.low.Load() && !r.full.Load() {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
	if left <= 0 {
		return ErrLogFull
	}
	return nil
}

// Run trims the log until ctx ends. It is ready after the first trim.
func (k *LogKeeper) Run(ctx context.Context, ready func()) error {
	for first := true; ; first = false {
		pause := trimEvery
		if k.trimOnce(ctx) {
			pause = trimFullEvery
		}
		if first {
			ready()
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is no failure
		}
	}
}

// trimOnce trims the log, and reports whether to do so again soon: it failed, or has left no
// room for some kind of records. Room is what was measured, also after an error. If nothing
// could be measured, kinds that had no room still have none, and the others are not bounded.
func (k *LogKeeper) trimOnce(ctx context.Context) (soon bool) {
	left, err := k.trim(ctx)
	if err != nil {
		k.log.Error("the event log, or a part of it, cannot be trimmed", "error", err)
	}
	failed := err != nil
	changed := k.failed.Swap(failed) != failed
	soon = failed
	for kind, r := range k.kinds {
		was, now := r.full.Load(), false
		switch {
		case left != nil:
			r.bytes.Store(left[kind])
			r.low.Store(left[kind] / 2)
			now = left[kind] <= 0
		case was:
			now = true
		default:
			r.bytes.Store(unmeasured)
			r.low.Store(0)
		}
		r.full.Store(now)
		soon = soon || now
		if now != was || now && changed {
			k.report(kind, now)
		}
	}
	return soon
}

// report logs that a kind of records has no room, and why, or has some again.
func (k *LogKeeper) report(kind kafka.Kind, full bool) {
	switch {
	case kind == kafka.Searches && full && k.failed.Load():
		k.log.Error("search events exceed their share of the event log, which cannot be trimmed; new ones are refused",
			"bytes", k.bytes())
	case kind == kafka.Searches && full:
		k.log.Error("search events exceed their share of the event log; new ones are refused",
			"bytes", k.bytes())
	case full:
		k.log.Warn("dead letters exceed their share of the event log", "bytes", k.bytes())
	default:
		k.log.Info("the event log has room again", "bytes", k.bytes())
	}
}
