package projection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

const (
	// saveEvery is how often a rebuild says how far it is. Later work is done again after a
	// crash, which costs reads and changes nothing.
	saveEvery = time.Second
	// silentFor is how long a rebuild may be silent before another process continues it. Two
	// that work on it at once only read more than they must.
	silentFor = 20 * time.Second
	// maxGaps is how many gaps of a rebuild are kept by name. All are counted and logged.
	maxGaps = 100
)

// errElsewhere says that another process works on the rebuild.
var errElsewhere = errors.New("projection: another process rebuilds it")

// Run rebuilds what is to be rebuilt, and removes builds that are not used any more, until
// ctx ends.
func (s *Set) Run(ctx context.Context, ready func()) error {
	ready()
	var all sync.WaitGroup
	for _, p := range s.known {
		r := &rebuilder{Set: s, p: p}
		all.Go(func() { r.run(ctx) })
	}
	all.Wait()
	return nil
}

// rebuilder rebuilds one projection.
type rebuilder struct {
	*Set
	p    *projection
	row  table.Rebuild // as last read or written
	seen time.Time     // since when the row has not changed
	done bool          // the first step is over
}

func (r *rebuilder) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := r.step(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Logger.Warn("projection: a rebuild failed and is retried", "projection", r.p.Name, "error", err)
		}
		if wait.For(ctx, r.cfg.PollEvery) != nil {
			return
		}
	}
}

// step does the work that is due.
func (r *rebuilder) step(ctx context.Context) error {
	if err := r.begin(ctx, r.p); err != nil {
		return err
	}
	b := *r.p.builds.Load()
	var work func(context.Context, table.Projection) error
	switch {
	case b.Next != 0 && b.NextVersion == r.p.Version && !b.Paused:
		work = r.rebuild
	case len(b.Dropped) > 0 && r.cfg.Clock().Sub(time.UnixMilli(b.ChangedAt)) >= r.cfg.RemoveAfter:
		work = r.remove
	default:
		return nil
	}
	mine, err := r.claim(ctx, b)
	if err != nil || !mine {
		return err
	}
	err = work(ctx, b)
	r.p.todo.Store(0)
	r.p.done.Store(0)
	if errors.Is(err, errElsewhere) {
		return nil
	}
	if r.row.Holder == "" { // it is over
		return err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CallTimeout)
	defer cancel()
	next := r.row
	next.Holder = ""
	return errors.Join(err, r.save(end, next)) // so that another need not wait
}

// claim makes this process the one that works on the projection, unless another does.
func (r *rebuilder) claim(ctx context.Context, b table.Projection) (mine bool, err error) {
	it, err := r.cfg.Store.Get(ctx, table.RebuildKey(r.p.Name), store.Strong)
	if err != nil {
		return false, fmt.Errorf("read the rebuild of %s: %w", r.p.Name, err)
	}
	now, row := r.cfg.Clock(), table.RebuildFrom(it)
	alone := r.cfg.Exclusive && !r.done
	if row.Revision != r.row.Revision || !r.done {
		r.row, r.seen, r.done = row, now, true
	}
	if row.Holder != "" && row.Holder != r.cfg.Process && !alone && now.Sub(r.seen) < silentFor {
		return false, nil
	}
	next := row
	if b.Next != 0 && row.Build != b.Next {
		next = table.Rebuild{Revision: row.Revision, Build: b.Next, BeganAt: now.UnixMilli()}
	}
	next.Holder = r.cfg.Process
	if err := r.save(ctx, next); errors.Is(err, errElsewhere) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return true, nil
}

// save writes the row of the rebuild on the condition that no other process has.
func (r *rebuilder) save(ctx context.Context, next table.Rebuild) error {
	next.Revision = r.row.Revision + 1
	cond := store.Absent()
	if r.row.Revision > 0 {
		cond = store.Exists().Eq(table.AttrRevision, store.Int(r.row.Revision))
	}
	plan := store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: table.RebuildKey(r.p.Name), Item: next.Item(),
		Cond: cond, Name: "rebuild"}}}
	err := r.cfg.Store.Transact(ctx, plan)
	for n := 1; n < maxTries && (errors.Is(err, store.ErrAmbiguous) || errors.Is(err, store.ErrConflict)); n++ {
		err = r.cfg.Store.Transact(ctx, plan)
	}
	var lost *store.ConditionError
	if errors.As(err, &lost) && len(lost.Failures) > 0 {
		if now := table.RebuildFrom(lost.Failures[0].Current); now != next { // else an earlier attempt had succeeded
			r.row, r.seen = now, r.cfg.Clock()
			return errElsewhere
		}
		err = nil
	}
	if err != nil {
		return fmt.Errorf("save the rebuild of %s: %w", r.p.Name, err)
	}
	r.row, r.seen = next, r.cfg.Clock()
	return nil
}

// part is what a source did at a time.
type part struct {
	done  int64    // events
	gaps  []string // names of chats that end before an event that cannot be read, or of records without rows
	again bool     // it started again at its beginning, so that earlier parts do not count
	after string   // where it continues; empty: it is at its end
}

// source is what a build is made from.
type source interface {
	// plan returns how many events there are, and where to begin.
	plan(ctx context.Context) (total int64, after string, err error)
	// next brings the next events into a build.
	next(ctx context.Context, build int64, after string) (part, error)
}

func (r *rebuilder) source() source {
	if r.p.folds() {
		return &chats{r.Set, r.p}
	}
	return &records{r.Set, r.p}
}

// rebuild makes the next build, and then the live one of it. A rebuild that gaps have blocked
// reads everything again when it is resumed, because the gaps may be repaired; if they are
// accepted, nothing is left to read.
func (r *rebuilder) rebuild(ctx context.Context, b table.Projection) error {
	src := r.source()
	row := r.row
	if row.Blocked && b.AcceptGaps {
		return r.finish(ctx, b, row)
	}
	if row.Blocked {
		row = table.Rebuild{Revision: row.Revision, Build: row.Build, Holder: row.Holder, BeganAt: row.BeganAt}
	}
	if !row.Planned {
		total, after, err := src.plan(ctx)
		if err != nil {
			return err
		}
		row.Planned, row.Total, row.After = true, total, after
	}
	for end := false; !end; {
		if err := r.save(ctx, row); err != nil {
			return err
		}
		if stop, err := r.stopped(ctx, b); err != nil || stop {
			return err
		}
		for until := r.cfg.Clock().Add(saveEvery); !end && r.cfg.Clock().Before(until); {
			r.p.todo.Store(max(row.Total, row.Done+1))
			r.p.done.Store(row.Done)
			p, err := src.next(ctx, b.Next, row.After)
			if err != nil {
				return errors.Join(err, r.keep(ctx, row))
			}
			if p.again {
				row.Done, row.Stuck, row.Gaps = 0, 0, ""
			}
			row.Done, row.Stuck, row.After, end = row.Done+p.done, row.Stuck+int64(len(p.gaps)), p.after, p.after == ""
			named := strings.Fields(row.Gaps)
			row.Gaps = strings.Join(append(named, p.gaps[:min(len(p.gaps), maxGaps-len(named))]...), " ")
		}
	}
	if row.Stuck > 0 && !b.AcceptGaps {
		return r.block(ctx, b, row)
	}
	return r.finish(ctx, b, row)
}

// block pauses a rebuild that is at its end and has gaps. The live build stays. The row of the
// rebuild is written first: if the process ends before the pause, the next one reads everything
// again and comes back here.
func (r *rebuilder) block(ctx context.Context, b table.Projection, row table.Rebuild) error {
	row.Blocked = true
	if err := r.save(ctx, row); err != nil {
		return err
	}
	r.cfg.Logger.Error("projection: a rebuild is paused because its build has gaps; repair the events and resume it, "+
		"accept the gaps, or cancel it", "projection", r.p.Name, "build", b.Next, "live", b.Live, "gaps", row.Stuck,
		"first", row.Gaps)
	_, err := update(ctx, r.cfg.Store, r.cfg.Clock, r.p.Name, System, func(now *table.Projection) error {
		if now.Revision != b.Revision { // an operator changed the rebuild: that holds
			return errUnchanged
		}
		now.Paused = true
		return nil
	})
	if errors.Is(err, errUnchanged) {
		err = nil
	}
	return err
}

// keep saves how far a rebuild is that ends early.
func (r *rebuilder) keep(ctx context.Context, row table.Rebuild) error {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CallTimeout)
	defer cancel()
	return r.save(end, row)
}

// stopped reports whether an operator has paused or canceled the rebuild.
func (r *rebuilder) stopped(ctx context.Context, b table.Projection) (bool, error) {
	it, err := r.cfg.Store.Get(ctx, table.ProjectionKey(r.p.Name), store.Strong)
	if err != nil {
		return false, fmt.Errorf("read the builds of %s: %w", r.p.Name, err)
	}
	return table.ProjectionFrom(it).Revision != b.Revision, nil
}

// finish makes the next build the live one.
func (r *rebuilder) finish(ctx context.Context, b table.Projection, row table.Rebuild) error {
	var dropped int64
	_, err := update(ctx, r.cfg.Store, r.cfg.Clock, r.p.Name, "", func(now *table.Projection) error {
		if now.Revision != b.Revision {
			return errUnchanged
		}
		dropped = now.Live
		drop(now, now.Live)
		now.Live, now.LiveVersion, now.Next, now.NextVersion = now.Next, now.NextVersion, 0, 0
		now.AcceptGaps = false
		return nil
	})
	if errors.Is(err, errUnchanged) { // it was paused or canceled
		return r.keep(ctx, row)
	}
	if err != nil {
		return err
	}
	row.Holder, row.EndedAt, row.Blocked = "", r.cfg.Clock().UnixMilli(), false
	r.cfg.Logger.Info("projection: a build is live", "projection", r.p.Name, "build", b.Next, "replaced", dropped,
		"events", row.Done, "gaps", row.Stuck, "first", row.Gaps)
	return r.save(ctx, row)
}

// remove removes the rows of builds that are not used any more.
func (r *rebuilder) remove(ctx context.Context, b table.Projection) error {
	prefixes := make([]string, len(b.Dropped))
	for i, build := range b.Dropped {
		n, err := strconv.ParseInt(build, 10, 64)
		if err != nil {
			return fmt.Errorf("projection: %.40q is not the number of a build", build)
		}
		prefixes[i] = table.ProjectionPartition(r.p.Name, n, "")
	}
	scan := store.Scan{Table: r.p.Table, Segments: 1}
	for saved := r.cfg.Clock(); ; {
		began := r.cfg.Clock()
		page, err := r.cfg.Store.Scan(ctx, scan)
		if err != nil {
			return fmt.Errorf("read %s: %w", r.p.Table, err)
		}
		var deletes []store.Write
		for _, row := range page.Rows {
			if slices.ContainsFunc(prefixes, func(s string) bool { return strings.HasPrefix(row.Key.PK, s) }) {
				deletes = append(deletes, store.Write{Op: store.OpDelete, Key: row.Key})
			}
		}
		for chunk := range slices.Chunk(deletes, store.MaxBatchWrite) {
			if err := r.cfg.Store.BatchWrite(ctx, chunk); err != nil {
				return fmt.Errorf("remove rows of %s: %w", r.p.Table, err)
			}
		}
		if scan.Cursor = page.Cursor; scan.Cursor == "" {
			break
		}
		if r.cfg.Clock().Sub(saved) >= saveEvery {
			if err := r.save(ctx, r.row); err != nil {
				return err
			}
			saved = r.cfg.Clock()
		}
		if err := r.rest(ctx, began, 0, 0); err != nil {
			return err
		}
	}
	_, err := update(ctx, r.cfg.Store, r.cfg.Clock, r.p.Name, "", func(now *table.Projection) error {
		now.Dropped = slices.DeleteFunc(slices.Clone(now.Dropped),
			func(build string) bool { return slices.Contains(b.Dropped, build) })
		return nil
	})
	return err
}
