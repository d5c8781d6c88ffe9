package eventlog

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// GivenUp says that a group of Parley will not get records of a partition: they were removed before
// the group had read them, because their kind had used up its share of the log.
type GivenUp struct {
	Group string
	kafka.Partition
	From, To int64     // offsets, [From,To)
	Records  int64     // as offsets; fewer than the range has if it was made of several
	At       time.Time // of the last removal
}

// maxGivenUp bounds the ledger, so that it fits into a row with the longest names of topics. Of more
// ranges, the two oldest ones of a group and a partition become one, from the start of the first to
// the end of the last.
const maxGivenUp = 500

// ledger is the ranges that readers have lost, in the order in which they lost them.
type ledger struct {
	store store.Store

	mu     sync.Mutex // held across the store
	loaded bool
	list   []GivenUp
}

// GivenUp returns the ledger: which ranges groups of Parley have lost, oldest first. It outlives the
// process and the records.
func (l *Log) GivenUp(ctx context.Context) ([]GivenUp, error) {
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	if err := l.ledger.load(ctx); err != nil {
		return nil, err
	}
	return slices.Clone(l.ledger.list), nil
}

// load reads the ledger once; mu is held.
func (g *ledger) load(ctx context.Context) error {
	if g.loaded {
		return nil
	}
	it, err := g.store.Get(ctx, table.LogGivenUpKey(), store.Strong)
	if err != nil {
		return fmt.Errorf("read what readers of the event log have lost: %w", err)
	}
	var list []GivenUp
	for _, line := range it.Get(table.AttrGivenUp).Strings() {
		var n, at int64
		var e GivenUp
		if _, err := fmt.Sscanf(line, "%d %d %s %s %d %d %d %d", &n, &at, &e.Group, &e.Topic, &e.ID, &e.From, &e.To,
			&e.Records); err != nil {
			return fmt.Errorf("%w: what readers of the event log have lost cannot be read: %.100q", store.ErrCorrupt, line)
		}
		e.At = time.UnixMilli(at)
		list = append(list, e)
	}
	g.list, g.loaded = list, true
	return nil
}

// add records losses, durably, before the records go. After a crash in between, the next removal
// records the same range again, which then changes nothing: positions of a range that are in the
// ledger already are not counted twice.
func (g *ledger) add(ctx context.Context, losses []GivenUp) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.load(ctx); err != nil {
		return err
	}
	list := slices.Clone(g.list)
	for _, e := range losses {
		list = merge(list, e)
	}
	lines := make([]string, len(list))
	for i, e := range list { // a list of a row is a set: the number keeps the order
		lines[i] = fmt.Sprintf("%04d %d %s %s %d %d %d %d", i, e.At.UnixMilli(), e.Group, e.Topic, e.ID, e.From, e.To,
			e.Records)
	}
	it := store.NewItem(store.Attr{Name: table.AttrGivenUp, Value: store.List(lines)})
	// Also on a full disk: trims make room.
	err := store.Freeing(g.store).BatchWrite(ctx, []store.Write{{Op: store.OpPut, Key: table.LogGivenUpKey(), Item: it}})
	if err != nil {
		return fmt.Errorf("record what readers of the event log lose: %w", err)
	}
	g.list = list
	return nil
}

// merge adds a loss. One that follows the last of its group and partition extends it.
func merge(list []GivenUp, e GivenUp) []GivenUp {
	same := func(o GivenUp) bool { return o.Group == e.Group && o.Partition == e.Partition }
	for i := len(list) - 1; i >= 0; i-- {
		last := &list[i]
		if !same(*last) {
			continue
		}
		if e.From = max(e.From, last.From); e.From <= last.To && e.To > last.To {
			last.Records += e.To - last.To
			last.To, last.At = e.To, e.At
			return list
		}
		if e.To <= last.To { // recorded before a crash
			return list
		}
		break
	}
	e.Records = e.To - e.From
	if list = append(list, e); len(list) <= maxGivenUp {
		return list
	}
	for i, first := range list {
		at := slices.IndexFunc(list[i+1:], func(o GivenUp) bool {
			return o.Group == first.Group && o.Partition == first.Partition
		})
		if at >= 0 {
			next := &list[i+1+at]
			next.From, next.Records = first.From, next.Records+first.Records
			return slices.Delete(list, i, i+1)
		}
	}
	return list // a group and a partition each: there are no more than that
}
