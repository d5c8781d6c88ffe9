package deadletter

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Page is a part of a list.
type Page struct {
	DeadLetters []DeadLetter
	Next        *Position // where the next page starts; nil: there is none
}

// List returns up to limit dead letters (at most maxDeadLetters) from a position on, by source,
// and in the order of their topic: those of one key in the order in which they failed. A dead
// letter that a crash wrote twice may be on two pages.
func (m *Manager) List(ctx context.Context, f Filter, limit int, from Position) (Page, error) {
	if limit < 1 || limit > maxDeadLetters {
		return Page{}, fmt.Errorf("%w: 1 to %d letters", ErrInvalid, maxDeadLetters)
	}
	var p Page
	err := m.scan(ctx, f, from, func(l *DeadLetter) error {
		if len(p.DeadLetters) == limit {
			p.Next = &l.position
			return errStop
		}
		p.DeadLetters = append(p.DeadLetters, *l)
		return nil
	})
	if err != nil {
		return Page{}, err
	}
	return p, nil
}

// Get returns one dead letter of any status.
func (m *Manager) Get(ctx context.Context, id string) (DeadLetter, error) {
	p, err := m.List(ctx, Filter{IDs: []string{id}, Statuses: []Status{Open, Running, Redriven, Discarded}}, 1, Position{})
	if err != nil {
		return DeadLetter{}, err
	}
	if len(p.DeadLetters) == 0 {
		return DeadLetter{}, ErrNotFound
	}
	return p.DeadLetters[0], nil
}

// Count is how many dead letters one group has of one topic for one reason.
type Count struct {
	Group, Topic, Reason string
	DeadLetters          int
	First, Last          time.Time // of their failures
}

// maxCounts bounds a histogram; reasons are few words, not data.
const maxCounts = 10_000

// Count counts dead letters by group, topic and reason, the most frequent first. total has also
// the dead letters for which the histogram has no room.
func (m *Manager) Count(ctx context.Context, f Filter) (counts []Count, total int, err error) {
	type bin struct{ group, topic, reason string }
	bins := map[bin]*Count{}
	err = m.scan(ctx, f, Position{}, func(l *DeadLetter) error {
		total++
		b := bin{l.Group, l.Record.Topic, l.Reason}
		c := bins[b]
		if c == nil {
			if len(bins) == maxCounts {
				return nil
			}
			c = &Count{Group: b.group, Topic: b.topic, Reason: b.reason, First: l.FailedAt, Last: l.FailedAt}
			bins[b] = c
		}
		c.DeadLetters++
		if c.First.IsZero() || (!l.FailedAt.IsZero() && l.FailedAt.Before(c.First)) {
			c.First = l.FailedAt // it is not known of what is parked
		}
		if l.FailedAt.After(c.Last) {
			c.Last = l.FailedAt
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	for _, c := range bins {
		counts = append(counts, *c)
	}
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.DeadLetters, a.DeadLetters), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic),
			cmp.Compare(a.Reason, b.Reason))
	})
	return counts, total, nil
}
