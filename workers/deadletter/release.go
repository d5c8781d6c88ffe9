package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume/parked"
)

const (
	// holdFor is how long a key's records wait for its release, unless it is held again.
	holdFor = 30 * time.Second
	// maxPasses is how often the dead letters of keys are read until the last one is reached.
	maxPasses = 3
)

// releaser ends the parking of keys whose dead letters are all done with. It reads these dead
// letters once; where records came meanwhile it holds the keys and reads once more.
type releaser struct {
	manager *Manager
	// next, if given, does something about a dead letter that may be open.
	next func(ctx context.Context, l *DeadLetter) error
	left map[string]table.Parked // by ordering key
	held map[string]table.Parked
}

// release handles the parked keys that a filter selects, and of them those in keys, unless
// that is nil. Those in blocked stay.
func (m *Manager) release(
	ctx context.Context, f Filter, keys map[string]bool, blocked map[string]string,
	next func(context.Context, *DeadLetter) error,
) (err error) {
	if f.Source == Topics {
		return nil
	}
	rows, err := parked.List(ctx, m.cfg.Store, parked.Select{Group: f.Group, Topic: declared(f.Topic), Key: f.Key})
	if err != nil {
		return err
	}
	r := releaser{manager: m, next: next, left: map[string]table.Parked{}, held: map[string]table.Parked{}}
	for _, row := range rows {
		if key := orderingKeyIn(Events, row.Group, row.Topic, row.Key); (keys == nil || keys[key]) && blocked[key] == "" {
			r.left[key] = row
		}
	}
	defer func() { err = errors.Join(err, r.letGo(context.WithoutCancel(ctx))) }()
	for pass := 0; pass < maxPasses && len(r.left) > 0; pass++ {
		if pass > 0 {
			if err := r.hold(ctx); err != nil {
				return err
			}
		}
		if err := r.pass(ctx); err != nil {
			return err
		}
	}
	return nil
}

// hold has the records of keys wait.
func (r *releaser) hold(ctx context.Context) error {
	for key, row := range r.left {
		held, err := parked.Hold(ctx, r.manager.cfg.Store, row, r.manager.cfg.Clock().Add(holdFor))
		switch {
		case err != nil:
			return fmt.Errorf("hold a parked key: %w", err)
		case held == nil: // another caller released it
			delete(r.left, key)
		default:
			r.left[key], r.held[key] = *held, *held
		}
	}
	return nil
}

// letGo ends the hold of keys that are not released: they have the records of their
// partitions wait.
func (r *releaser) letGo(ctx context.Context) (failed error) {
	for _, row := range r.held {
		if _, err := parked.Hold(ctx, r.manager.cfg.Store, row, time.UnixMilli(0)); err != nil {
			failed = fmt.Errorf("end the hold of a parked key: %w", err)
		}
	}
	return failed
}

// pass reads all dead letters of some keys, and releases those of which none is open. Those
// whose last dead letter was not there yet stay in left.
func (r *releaser) pass(ctx context.Context) error {
	last, open := map[string]bool{}, map[string]bool{} // the last dead letter was there; one is open
	all := Filter{Source: Events, Statuses: []Status{Open, Running, Redriven, Discarded}, orderingKeys: map[string]bool{}}
	for key := range r.left {
		all.orderingKeys[key] = true
	}
	err := r.manager.scan(ctx, all, Position{}, func(l *DeadLetter) error {
		key := l.orderingKey()
		row := r.left[key]
		last[key] = last[key] || parked.IsLast(&row, l.Record)
		if r.next != nil {
			if err := r.next(ctx, l); err != nil {
				return err
			}
		}
		open[key] = open[key] || l.Status != Redriven && l.Status != Discarded
		return nil
	})
	if err != nil {
		return err
	}
	for key, row := range r.left {
		switch {
		case open[key]:
			delete(r.left, key)
			continue
		case !last[key]:
			continue
		}
		released, err := parked.Release(ctx, r.manager.cfg.Store, row)
		if err != nil {
			return fmt.Errorf("release a parked key: %w", err)
		}
		if released {
			delete(r.left, key)
			delete(r.held, key)
			r.manager.cfg.Logger.Info("deadletter: a parked key is released", "group", row.Group, "topic", row.Topic,
				"records", row.Records)
		}
	}
	return nil
}
