package outbox

import (
	"context"
	"math"
	"slices"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Status is how far the publication of an event is. It is not stored with the event: the
// rows of the outbox say it.
type Status string

// Statuses of events.
const (
	New       Status = "new"       // a row announces it
	Failed    Status = "failed"    // the relay cannot publish its row, or a row of its chat that may be its own
	Published Status = "published" // no row announces it any more
)

// Standing is the status of an event, with its reason.
type Standing struct {
	Status Status
	Row    store.Key // the first row that announces it; empty if it is published
	// Replay says that it was published before and is wanted again.
	Replay    bool
	Attempts  int64  // how often the failure of its row was recorded
	LastError string // why its row cannot be published
}

// Standings reads how far the publication of events of a chat is; versions must be in
// order. Of several rows that announce an event the failed one counts, and the first. An
// unreadable row may announce every event that no other row does: these have failed, and
// none of them is published.
//
// An event without a row counts as published, so the events must have been read before.
func Standings(ctx context.Context, st store.Store, chatID string, versions []int64) ([]Standing, error) {
	out := make([]Standing, len(versions))
	var unknown *Standing // of the first unreadable row
	for row, err := range Rows(ctx, st, chatID) {
		if err != nil {
			return nil, err
		}
		s, from, to := standing(row)
		if from == 0 {
			if unknown == nil {
				unknown = &s
			}
			continue
		}
		for i, _ := slices.BinarySearch(versions, from); i < len(versions) && versions[i] <= to; i++ {
			out[i] = out[i].and(s)
		}
	}
	for i := range out {
		switch {
		case out[i].Status != "":
		case unknown != nil:
			out[i] = *unknown
		default:
			out[i].Status = Published
		}
	}
	return out, nil
}

// and is the standing of an event that another row announces, too.
func (s Standing) and(other Standing) Standing {
	if s.Status == "" {
		return other
	}
	first := s.Row
	replay := s.Replay && other.Replay
	if s.Status != Failed && other.Status == Failed {
		s = other
	}
	s.Row, s.Replay = first, replay
	return s
}

// standing is what a row says about the events that it announces, from one version to
// another; from is 0 if these cannot be read.
func standing(row store.Row) (s Standing, from, to int64) {
	o, err := table.OutboxFrom(row)
	s = Standing{
		Status: New, Row: row.Key, Replay: o.Replay, Attempts: row.Item.Get(table.AttrAttempts).Int64(),
		LastError: row.Item.Get(table.AttrLastError).Str(),
	}
	if s.LastError != "" {
		s.Status = Failed
	}
	if err != nil {
		if s.LastError == "" {
			s.Status, s.LastError = Failed, err.Error()
		}
		return s, 0, 0
	}
	count := max(o.Count, 1)
	if o.FirstVersion > math.MaxInt64-count {
		count = 1
	}
	return s, max(o.FirstVersion, 1), max(o.FirstVersion, 1) + count - 1
}

// Announced returns the versions that a row announces, as Standings reads them. ok is
// false if they cannot be read.
func Announced(row store.Row) (from, to int64, ok bool) {
	_, from, to = standing(row)
	return from, to, from > 0
}
