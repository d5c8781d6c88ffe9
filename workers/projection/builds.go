package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Errors of what operators ask for.
var (
	ErrUnknown  = errors.New("projection: no such projection")
	ErrRunning  = errors.New("projection: rebuilding") // with what is wrong, like the next two
	ErrNothing  = errors.New("projection: not rebuilding")
	ErrFirst    = errors.New("projection: first build")
	ErrAccept   = errors.New("projection: gaps are accepted when a rebuild is started or resumed")
	ErrNotBuilt = errors.New("projection: it is built for the first time")
	errChanged  = errors.New("projection: its builds keep changing")
)

// System is the actor of a rebuild that no operator requested.
const System = "system"

// Status is a projection as operators see it.
type Status struct {
	Name, About string
	Version     int64 // of the code of this process
	Builds      table.Projection
	Rebuild     table.Rebuild // of the last rebuild; it is about Builds.Next while that is made
}

// Operate shows the builds of projections and starts and stops rebuilds. Processes that run
// the projections see it within Config.PollEvery.
type Operate struct {
	Definitions []Definition
	Store       store.Store
	Generation  string
	Clock       func() time.Time
}

func (o *Operate) find(name string) (*Definition, error) {
	for i := range o.Definitions {
		if d := &o.Definitions[i]; d.Name == name {
			return d, nil
		}
	}
	return nil, fmt.Errorf("%w: %.40q", ErrUnknown, name)
}

// List returns the status of all projections.
func (o *Operate) List(ctx context.Context) (list []Status, err error) {
	for i := range o.Definitions {
		s, err := o.status(ctx, &o.Definitions[i])
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func (o *Operate) status(ctx context.Context, d *Definition) (Status, error) {
	items, err := o.Store.BatchGet(ctx, []store.Key{table.ProjectionKey(d.Name), table.RebuildKey(d.Name)}, store.Strong)
	if err != nil {
		return Status{}, fmt.Errorf("read the builds of %s: %w", d.Name, err)
	}
	return Status{Name: d.Name, About: d.About, Version: d.Version, Builds: table.ProjectionFrom(items[0]),
		Rebuild: table.RebuildFrom(items[1])}, nil
}

// Action is what is done about a rebuild.
type Action uint8

// The actions.
const (
	Start  Action = iota + 1 // make the next build
	Pause                    // let it wait; records go into it meanwhile
	Resume                   // continue
	Cancel                   // drop what was made of it
)

// Change is an action on a rebuild.
type Change struct {
	Action Action
	// AcceptGaps lets the build become live although events are missing in it. Only for Start and
	// Resume.
	AcceptGaps bool
}

// Do starts, pauses, resumes or cancels the rebuild of a projection, and returns its status
// after that. Without execute it only says whether it could.
func (o *Operate) Do(ctx context.Context, name string, c Change, by string, execute bool) (Status, error) {
	d, err := o.find(name)
	if err != nil {
		return Status{}, err
	}
	if c.AcceptGaps && c.Action != Start && c.Action != Resume {
		return Status{}, ErrAccept
	}
	change := func(p *table.Projection) error { return o.apply(d, p, c) }
	if execute {
		_, err = update(ctx, o.Store, o.Clock, d.Name, by, change)
	} else {
		var s Status
		if s, err = o.status(ctx, d); err == nil {
			err = change(&s.Builds)
		}
	}
	if err != nil {
		return Status{}, err
	}
	return o.status(ctx, d)
}

// apply changes the row of a projection.
func (o *Operate) apply(d *Definition, p *table.Projection, c Change) error {
	a := c.Action
	switch {
	case a == Start && p.Next != 0:
		return fmt.Errorf("%w: a rebuild of %s is under way; %s was the last to change it", ErrRunning, d.Name, p.By)
	case a == Start:
		begin(p, d.Version, o.Generation)
		p.AcceptGaps = c.AcceptGaps
		return nil
	case p.Next == 0:
		return fmt.Errorf("%w: no rebuild of %s is under way", ErrNothing, d.Name)
	case a == Cancel && (p.Live == 0 || p.LiveVersion != p.NextVersion):
		return fmt.Errorf("%w: %s has no other build of this version; the rebuild can be paused", ErrFirst, d.Name)
	case a == Cancel:
		drop(p, p.Next)
		p.Next, p.NextVersion, p.Paused, p.AcceptGaps = 0, 0, false, false
	default:
		p.Paused, p.AcceptGaps = a == Pause, p.AcceptGaps || c.AcceptGaps
	}
	return nil
}

// begin begins the next build.
func begin(p *table.Projection, version int64, generation string) {
	p.Last++
	p.Next, p.NextVersion, p.Paused, p.AcceptGaps, p.Generation = p.Last, version, false, false, generation
}

// drop has the rows of a build removed.
func drop(p *table.Projection, build int64) {
	if build != 0 {
		p.Dropped = append(slices.Clone(p.Dropped), strconv.FormatInt(build, 10))
	}
}

// update changes the row of a projection, unless change returns an error. An empty by keeps
// the actor of the last change.
func update(
	ctx context.Context, st store.Store, clock func() time.Time, name, by string, change func(*table.Projection) error,
) (table.Projection, error) {
	for range maxTries {
		it, err := st.Get(ctx, table.ProjectionKey(name), store.Strong)
		if err != nil {
			return table.Projection{}, fmt.Errorf("read the builds of %s: %w", name, err)
		}
		was := table.ProjectionFrom(it)
		next := was
		if err := change(&next); err != nil {
			return was, err
		}
		next.Revision, next.By, next.ChangedAt = was.Revision+1, cmp.Or(by, was.By), clock().UnixMilli()
		cond := store.Absent()
		if it != nil {
			cond = store.Exists().Eq(table.AttrRevision, store.Int(was.Revision))
		}
		err = st.Transact(ctx, store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: table.ProjectionKey(name),
			Item: next.Item(), Cond: cond, Name: "projection"}}})
		var lost *store.ConditionError
		switch {
		case err == nil:
			return next, nil
		case errors.As(err, &lost), errors.Is(err, store.ErrConflict):
		case errors.Is(err, store.ErrAmbiguous):
			if now, err := st.Get(ctx, table.ProjectionKey(name), store.Strong); err == nil &&
				table.ProjectionFrom(now).Revision == next.Revision && table.ProjectionFrom(now).By == next.By {
				return next, nil // or another change by the same: it is read again before it matters
			}
		default:
			return was, fmt.Errorf("change the builds of %s: %w", name, err)
		}
	}
	return table.Projection{}, fmt.Errorf("%w: %s", errChanged, name)
}

// begin makes the row of a projection, and starts the automatic rebuilds: the first one, one
// for a newer version of the code, and one after the store was restored.
func (s *Set) begin(ctx context.Context, p *projection) error {
	it, err := s.cfg.Store.Get(ctx, table.ProjectionKey(p.Name), store.Strong)
	if err != nil {
		return fmt.Errorf("read the builds of %s: %w", p.Name, err)
	}
	if now := table.ProjectionFrom(it); !s.isDue(p, &now) {
		p.builds.Store(&now)
		return nil
	}
	now, err := update(ctx, s.cfg.Store, s.cfg.Clock, p.Name, System, func(b *table.Projection) error {
		if !s.isDue(p, b) {
			return errUnchanged
		}
		drop(b, b.Next)
		begin(b, p.Version, s.cfg.History.Generation())
		return nil
	})
	if errors.Is(err, errUnchanged) {
		err = nil
	}
	if err == nil {
		p.builds.Store(&now)
	}
	return err
}

// errUnchanged says that there was nothing to change.
var errUnchanged = errors.New("projection: nothing to change")

// isDue reports whether a rebuild must begin.
func (s *Set) isDue(p *projection, b *table.Projection) bool {
	newest := max(b.LiveVersion, b.NextVersion)
	return newest < p.Version || newest == p.Version && !s.cfg.History.Holds(b.Generation, 0)
}

// Live returns the build of a projection that queries read; ErrNotBuilt if there is none yet.
func Live(ctx context.Context, st store.Store, name string) (int64, error) {
	it, err := st.Get(ctx, table.ProjectionKey(name), store.Strong)
	if err != nil {
		return 0, fmt.Errorf("read the builds of %s: %w", name, err)
	}
	if p := table.ProjectionFrom(it); p.Live != 0 {
		return p.Live, nil
	}
	return 0, fmt.Errorf("%w: %s", ErrNotBuilt, name)
}
