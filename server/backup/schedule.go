package backup

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/backup/bucket"
	"github.com/parley-chat/parley/server/infra/telemetry"
)

// pollEvery is how often a Schedule checks whether a backup is due.
const pollEvery = 30 * time.Second

// Schedule makes backups of a data directory whose server runs. It belongs to one goroutine,
// but for what it counts.
type Schedule struct {
	// Take makes a snapshot in a directory, which is there until release is called.
	Take    func(context.Context) (dir string, release func(), err error)
	DataDir string
	To      string        // directory of the backups, or an address of S3
	Every   time.Duration // from the begin of one backup to that of the next
	Keep    int           // backups that stay there
	Clock   func() time.Time
	Logger  *slog.Logger

	begun  atomic.Int64 // when Run was, in unix ms; 0: not yet
	last   atomic.Int64 // when the newest backup was begun, in unix ms; 0: none
	failed atomic.Int64
}

// Measure connects the metrics of backups, which are there without a schedule, too.
func (s *Schedule) Measure(m *telemetry.Metrics) {
	m.Gauge(telemetry.BackupLast, "When the newest backup by the schedule was begun, in seconds since 1970; 0 if there is none.",
		func() float64 { return float64(s.last.Load()) / 1000 })
	m.Gauge(telemetry.BackupOverdue, "Seconds since the schedule wants a backup that is not there; 0 without a schedule.",
		s.overdue)
	m.Counter(telemetry.BackupFailed, "Backups by the schedule that failed.",
		func() float64 { return float64(s.failed.Load()) })
}

// overdue is for how many seconds a backup has been due.
func (s *Schedule) overdue() float64 {
	began := s.begun.Load()
	if s.To == "" || began == 0 {
		return 0
	}
	due := began // of a directory without backups
	if last := s.last.Load(); last > 0 {
		due = last + s.Every.Milliseconds()
	}
	return max(0, float64(s.Clock().UnixMilli()-due)/1000)
}

// Run makes a backup whenever the newest one is older than Every, until ctx ends: also at once. One
// that failed is tried again after a tenth of Every.
func (s *Schedule) Run(ctx context.Context, ready func()) error {
	ready()
	if err := s.find(ctx); err != nil && ctx.Err() == nil {
		s.Logger.Warn("the newest backup is not known, so another one is made", "to", s.To, "error", err)
	}
	s.begun.Store(s.Clock().UnixMilli())
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	var retry time.Time
	for {
		if now := s.Clock(); s.due(now) && !now.Before(retry) {
			if err := s.backUp(ctx); err != nil && ctx.Err() == nil {
				s.failed.Add(1)
				retry = now.Add(s.Every / 10)
				s.Logger.Error("no backup was made; it is tried again", "to", s.To, "error", err, "at", retry.Format(time.RFC3339))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// find reads when the newest backup of this data directory was made, by this process or
// another one.
func (s *Schedule) find(ctx context.Context) error {
	of := NewList(s.DataDir, s.Clock())
	if bucket.Is(s.To) {
		p, _, err := openPool(ctx, s.To)
		if err != nil {
			return err
		}
		taken, err := p.newestOf(ctx, of.source())
		if !taken.IsZero() {
			s.last.Store(taken.UnixMilli())
		}
		return err
	}
	_, lists := allOf(s.To, of)
	for _, l := range lists {
		s.last.Store(max(s.last.Load(), l.Taken.UnixMilli()))
	}
	return nil
}

// due reports whether the newest backup is too old, or lies in the future because the clock
// was set back.
func (s *Schedule) due(now time.Time) bool {
	age := now.UnixMilli() - s.last.Load()
	return age >= s.Every.Milliseconds() || age < 0
}

func (s *Schedule) backUp(ctx context.Context) error {
	dir, release, err := s.Take(ctx)
	if err != nil {
		return err
	}
	defer release()
	list, err := ReadList(dir)
	if err != nil {
		return err
	}
	began := s.Clock()
	r, err := Write(ctx, Options{From: dir, Of: list, To: s.To, Keep: s.Keep})
	if r.Path != "" {
		s.last.Store(list.Taken.UnixMilli())
	}
	if err != nil {
		return err
	}
	s.Logger.Info("a backup was made", "path", r.Path, "bytes", r.Bytes, "new_bytes", r.Written, "removed", r.Removed,
		"took", s.Clock().Sub(began).Round(time.Millisecond))
	return nil
}
