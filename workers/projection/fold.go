package projection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// errStuck says that an event of the store cannot be read. Its chat is folded up to it.
var errStuck = errors.New("projection: an event of the store cannot be read")

// errTooMany is the cause where an event changes more rows than a plan has.
var errTooMany = errors.New("it changes too many rows")

// errBusy says that others were faster too often. It passes.
var errBusy = errors.New("projection: others fold the same chat")

const (
	pageEvents = 500 // events that are read at a time
	maxTries   = 8   // plans of one step that others were faster with, or whose end is unknown
)

// fold folds the events of a chat that follow a position into a build. The position may be
// an old one: then it is read again. Gently, it leaves store and processor to others between
// two plans.
func (s *Set) fold(
	ctx context.Context, p *projection, build int64, chat string, from int64, count *atomic.Int64, gently bool,
) error {
	partition := table.ProjectionPartition(p.Name, build, chat)
	for tries, more := 0, true; more; {
		limit := pageEvents
		if gently {
			var err error
			if limit, err = s.turn(ctx, pageEvents); err != nil {
				return err
			}
		}
		began := s.cfg.Clock()
		reached, events, err := s.step(ctx, p, partition, chat, from, limit)
		var lost *store.ConditionError
		switch {
		case errors.As(err, &lost), errors.Is(err, store.ErrAmbiguous), errors.Is(err, store.ErrConflict):
			p.conflicts.Add(1)
			if tries++; tries == maxTries {
				return fmt.Errorf("%w: %w", errBusy, err)
			}
			if from, err = s.position(ctx, p, partition); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		count.Add(events)
		from, tries, more = reached.version, 0, reached.more
		if gently {
			if err := s.rest(ctx, began, limit, reached.taken); err != nil {
				return err
			}
		}
	}
	return nil
}

// stepCost is what a step costs beside its events, in events.
const stepCost = 10

// turn waits until a rebuild may proceed, and returns how many events it may take at a time.
func (s *Set) turn(ctx context.Context, limit int) (int, error) {
	if s.cfg.Throttle == nil {
		return limit, nil
	}
	n, err := s.cfg.Throttle.Wait(ctx, int64(limit))
	return int(n), err
}

// rest leaves the processor to others, after a step of a rebuild that used some of the events
// of its turn.
func (s *Set) rest(ctx context.Context, began time.Time, turn, used int) error {
	if s.cfg.Throttle != nil {
		s.cfg.Throttle.Return(int64(max(0, turn-used-stepCost)))
	}
	took := min(s.cfg.Clock().Sub(began), maxRest)
	return wait.For(ctx, time.Duration(float64(took)*s.cfg.Rest))
}

// maxRest bounds the rest after a step: one that took long waited for others.
const maxRest = 100 * time.Millisecond

// position reads how far a chat is folded.
func (s *Set) position(ctx context.Context, p *projection, partition string) (int64, error) {
	it, err := s.cfg.Store.Get(ctx, table.FoldedKey(p.Table, partition), store.Strong)
	if err != nil {
		return 0, fmt.Errorf("read a position of %s: %w", p.Name, err)
	}
	return table.FoldedFrom(it).Version, nil
}

// reached is how far a step has come, over how many events, and whether there are more.
type reached struct {
	version int64
	taken   int
	more    bool
}

// step folds the events that fit into one plan, up to a limit. It returns how far it has come, and how many
// events changed rows.
func (s *Set) step(
	ctx context.Context, p *projection, partition, chat string, from int64, limit int,
) (to reached, events int64, err error) {
	page, err := s.cfg.Store.Query(ctx, store.Query{Table: store.Events, PK: chat, From: table.Number(from + 1),
		Limit: limit, Consistency: store.Strong})
	if err != nil {
		return to, 0, fmt.Errorf("read events of %s: %w", chat, err)
	}
	c, err := p.choose(from, page.Rows)
	if err != nil || c.taken == 0 {
		return reached{version: from}, 0, err
	}
	rows, err := s.read(ctx, p, partition, c.keys)
	if err != nil {
		return to, 0, err
	}
	for _, e := range c.events {
		p.Apply(e, rows)
	}
	moved := store.Absent()
	if from > 0 {
		moved = store.Exists().Eq(table.AttrVersion, store.Int(from))
	}
	plan := store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: table.FoldedKey(p.Table, partition),
		Item: table.Folded{Version: c.reached}.Item(), Cond: moved, Name: "position"}}}
	for _, sk := range c.keys {
		if it := rows[sk]; it != nil {
			plan.Writes = append(plan.Writes, store.Write{Op: store.OpPut,
				Key: store.Key{Table: p.Table, PK: partition, SK: sk}, Item: it, Name: "row"})
		}
	}
	if err := s.cfg.Store.Transact(ctx, plan); err != nil {
		return to, 0, fmt.Errorf("write rows of %s: %w", p.Name, err)
	}
	return reached{c.reached, c.taken, c.taken < len(page.Rows) || page.Cursor != ""}, int64(len(c.events)), nil
}

// chosen are the events of a step.
type chosen struct {
	events  []event.Event
	keys    []string // of the rows that they may change
	reached int64    // version
	taken   int      // rows of the page
}

// choose takes events from the beginning of a page, as many as one plan can fold. errStuck:
// the first one cannot be read.
func (d *Definition) choose(from int64, page []store.Row) (c chosen, err error) {
	c.reached = from
	for i, row := range page {
		if !slices.Contains(d.Types, table.EventType(row)) {
			version, err := table.EventVersion(row.Key)
			if err != nil {
				return c, stuck(c, from, err)
			}
			c.reached, c.taken = version, i+1
			continue
		}
		stored, err := table.EventFrom(row)
		if err != nil {
			return c, stuck(c, from, err)
		}
		e, err := event.Unmarshal(stored.Type, stored.Payload)
		if err != nil {
			return c, stuck(c, from, err)
		}
		keys := c.keys
		for _, sk := range d.Touches(e) {
			if !slices.Contains(keys, sk) {
				keys = append(keys, sk)
			}
		}
		if len(keys) > MaxRows {
			return c, stuck(c, from, errTooMany)
		}
		c.events, c.keys, c.reached, c.taken = append(c.events, e), keys, stored.Version, i+1
	}
	return c, nil
}

// stuck is the error of an event that cannot be read, once those before it are folded.
func stuck(c chosen, from int64, err error) error {
	if c.reached > from {
		return nil
	}
	return fmt.Errorf("%w: %w", errStuck, err)
}

// read reads rows of a chat.
func (s *Set) read(ctx context.Context, p *projection, partition string, sks []string) (Rows, error) {
	rows := make(Rows, len(sks))
	if len(sks) == 0 {
		return rows, nil
	}
	keys := make([]store.Key, len(sks))
	for i, sk := range sks {
		keys[i] = store.Key{Table: p.Table, PK: partition, SK: sk}
	}
	items, err := s.cfg.Store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", p.Name, err)
	}
	for i, it := range items {
		if it != nil {
			rows[sks[i]] = it
		}
	}
	return rows, nil
}
