// Package replay publishes events again: it adds rows to the outbox for selected events of
// the event store, and the relay publishes them. Nothing is read from Kafka: an empty one
// gets all that it ever had.
//
// Published events get rows of their own, so that each replay publishes them once more.
// Consumers drop events that they have seen by generation, chat and version. A replay never
// publishes a later event ahead of an earlier one that no consumer has seen. The rows of
// failed events are repaired (package failedrows): they are new again, and wait for the relay
// as those that never failed. The package owns the selection, the rows of published events
// and the rate; it does not publish.
//
// Concurrency: all functions are safe for concurrent use.
package replay

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/eventquery"
)

// Limits of a call.
const (
	MaxChats    = 1_000
	DefaultRate = 1_000   // events a second
	MaxRate     = 100_000 // events a second
	maxChunk    = 2_000   // events of one chat that are selected at a time
	scanPage    = 100     // chats between two positions where a replay can be resumed
)

// Filter selects events.
type Filter struct {
	Chats        []string  // empty: all, which reads the whole event store
	From, To     int64     // versions, both included; 0: open
	Types        []string  // of events; empty: all
	After, Until time.Time // of the events' times, the second excluded; zero: open
	// Statuses are outbox.Published, outbox.Failed, or both; empty: published ones. A failed
	// row is selected by one of its events, and repaired whole.
	Statuses []outbox.Status
}

// Options of a replay.
type Options struct {
	DryRun     bool               // only report what would be done
	Limit      int                // events; 0: all
	Rate       int                // events a second; 0: DefaultRate
	OnProgress func(Report) error // called after each chat; may be nil; its error ends the replay
	// Resume is the Report.Resume of a replay with the same filter that ended early: this
	// replay resumes there.
	Resume string
}

// Report counts what was done.
type Report struct {
	Chats  int // read
	Events int // that will be published again
	Rows   int // written
	// Unpublished are left out: they are still to be published for the first time, or were
	// within the last seconds.
	Unpublished int
	Lost        int // failed rows that no readable events are stored for
	More        bool
	// Resume is where another replay resumes if this one ends early; empty: at the start.
	// Events of the last few chats may then be published twice.
	Resume string
}

// ErrInvalid is the error of an invalid filter or option.
var ErrInvalid = errors.New("replay: invalid choice")

func (c Filter) validate() error {
	if len(c.Chats) > MaxChats {
		return fmt.Errorf("%w: at most %d chats", ErrInvalid, MaxChats)
	}
	for _, s := range c.Statuses {
		if s != outbox.Published && s != outbox.Failed {
			return fmt.Errorf("%w: events that are %s are published anyway", ErrInvalid, s)
		}
	}
	events := c.events()
	if c.OfSearch() {
		if err := c.validateSearch(); err != nil {
			return err
		}
		events.Types = nil
	}
	if err := events.Validate(); err != nil {
		return fmt.Errorf("%w: %s", ErrInvalid, strings.TrimPrefix(err.Error(), eventquery.ErrInvalid.Error()+": "))
	}
	return nil
}

// events is the part of the filter that each event is held against.
func (c Filter) events() eventquery.Filter {
	return eventquery.Filter{From: c.From, To: c.To, Types: c.Types, After: c.After, Until: c.Until}
}

// wants reports whether events of a status are selected.
func (c Filter) wants(s outbox.Status) bool {
	return slices.Contains(c.Statuses, s) || len(c.Statuses) == 0 && s == outbox.Published
}

// run is one replay.
type run struct {
	store   store.Store
	now     func() time.Time
	filter  Filter
	events  eventquery.Filter
	options Options
	id      string // part of the keys of its rows
	report  Report
}

// Run selects events and, unless it is a dry run, writes the rows that make the relay publish
// them again. Report.More says that it ended at its limit. The order of chats is
// unspecified. A replay that ended early, by its context or an error, has done what its
// report says.
func Run(ctx context.Context, st store.Store, now func() time.Time, c Filter, o Options) (Report, error) {
	if err := c.validate(); err != nil {
		return Report{}, err
	}
	o.Rate = cmp.Or(o.Rate, DefaultRate)
	if o.Limit < 0 || o.Rate < 1 || o.Rate > MaxRate {
		return Report{}, fmt.Errorf("%w: a rate of 1 to %d events a second is required", ErrInvalid, MaxRate)
	}
	if o.OnProgress == nil {
		o.OnProgress = func(Report) error { return nil }
	}
	if o.Resume != "" && len(c.Chats) > 0 {
		return Report{}, fmt.Errorf("%w: only a replay of all chats can be resumed; repeat the others", ErrInvalid)
	}
	r := &run{store: st, now: now, filter: c, events: c.events(), options: o, id: rand.Text()[:8]}
	all := r.ofChats
	if c.OfSearch() {
		all = r.searchEvents
	}
	err := all(ctx)
	if errors.Is(err, errLimit) {
		err = nil
	}
	return r.report, err
}

// ofChats replays the failed events of chats, and then those that were published.
func (r *run) ofChats(ctx context.Context) error {
	if r.filter.wants(outbox.Failed) && r.options.Resume == "" { // a replay that resumes has been there
		if err := r.failed(ctx); err != nil {
			return err
		}
	}
	if !r.filter.wants(outbox.Published) {
		return nil
	}
	return r.everyChat(ctx)
}

// everyChat replays the selected chats.
func (r *run) everyChat(ctx context.Context) error {
	return r.chats(ctx, func(id string) error {
		r.report.Chats++
		if err := r.chat(ctx, id); err != nil {
			return fmt.Errorf("replay %s: %w", id, err)
		}
		return r.options.OnProgress(r.report)
	})
}

// chosen are the chats of the filter, each once.
func (r *run) chosen() []string { return slices.Compact(slices.Sorted(slices.Values(r.filter.Chats))) }

// errLimit ends a replay at its limit.
var errLimit = errors.New("limit")

// chats calls onChat with the ids of the selected chats; all chats are found by their heads.
func (r *run) chats(ctx context.Context, onChat func(id string) error) error {
	if len(r.filter.Chats) > 0 {
		for _, id := range r.chosen() {
			if err := onChat(id); err != nil {
				return err
			}
		}
		return nil
	}
	s := store.Scan{Table: store.ChatCounters, Segments: 1, Limit: scanPage, Cursor: r.options.Resume}
	for first := true; first || s.Cursor != ""; first = false {
		r.report.Resume = s.Cursor
		page, err := r.store.Scan(ctx, s)
		if err != nil {
			return fmt.Errorf("read chats: %w", err)
		}
		for _, row := range page.Rows {
			if err := onChat(row.Key.PK); err != nil {
				return err
			}
		}
		s.Cursor = page.Cursor
	}
	return nil
}

// chat replays the events of a chat, some at a time.
func (r *run) chat(ctx context.Context, id string) error {
	for from := r.filter.From; ; {
		limit := maxChunk
		if r.options.Limit > 0 {
			limit = min(limit, r.options.Limit-r.report.Events)
		}
		versions, more, err := r.selectVersions(ctx, id, from, limit)
		if err != nil {
			return err
		}
		if len(versions) > 0 {
			from = versions[len(versions)-1] + 1
			if err := r.write(ctx, id, versions); err != nil {
				return err
			}
		}
		switch {
		case !more:
			return nil
		case r.options.Limit > 0 && r.report.Events >= r.options.Limit:
			r.report.More = true
			return errLimit
		case len(versions) == 0: // the limit is reached
			return nil
		}
	}
}

// write writes the rows of a chat's selected events, in order.
func (r *run) write(ctx context.Context, id string, versions []int64) error {
	// This is read after the events: an event before the first waiting one was published.
	waiting, err := outbox.Unpublished(ctx, r.store, id)
	if err != nil {
		return err
	}
	published := len(versions)
	switch {
	case waiting.Unreadable:
		published = 0 // the relay publishes replays also while it quarantines such a row
	case waiting.First > 0:
		published, _ = slices.BinarySearch(versions, waiting.First)
	}
	r.report.Unpublished += len(versions) - published
	return r.announce(ctx, id, versions[:published])
}

// announce writes the rows of a stream's selected events.
func (r *run) announce(ctx context.Context, id string, versions []int64) error {
	for len(versions) > 0 {
		n := 1
		for n < len(versions) && n < outbox.MaxRun && versions[n] == versions[0]+int64(n) {
			n++
		}
		if !r.options.DryRun {
			o := table.Outbox{Shard: event.Shard(id), AggregateID: id, FirstVersion: versions[0], Count: int64(n),
				CreatedAt: r.now().UnixMilli(), Replay: true, ReplayID: r.id}
			if err := r.store.BatchWrite(ctx, []store.Write{{Op: store.OpPut, Key: o.Key(), Item: o.Item()}}); err != nil {
				return fmt.Errorf("write rows: %w", err)
			}
		}
		r.report.Events += n
		r.report.Rows++
		versions = versions[n:]
		if err := r.pause(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// pause waits as long as a number of events takes at the rate.
func (r *run) pause(ctx context.Context, events int) error {
	if r.options.DryRun {
		return ctx.Err()
	}
	return wait.For(ctx, time.Duration(events)*time.Second/time.Duration(r.options.Rate))
}

// selectVersions reads the versions of a chat's selected events from one on, in order.
func (r *run) selectVersions(
	ctx context.Context, id string, from int64, limit int,
) (versions []int64, more bool, err error) {
	q := store.Query{Table: store.Events, PK: id, From: table.Number(from), Consistency: store.Strong}
	if r.filter.To > 0 {
		if from > r.filter.To {
			return nil, false, nil
		}
		q.To = table.Number(r.filter.To)
	}
	for row, err := range store.QueryAll(ctx, r.store, q) {
		if err != nil {
			return nil, false, fmt.Errorf("read events: %w", err)
		}
		e := eventquery.Read(row)
		if e.Body == nil || !r.events.Matches(&e) { // what cannot be read cannot be published
			continue
		}
		if len(versions) == limit {
			return versions, true, nil
		}
		versions = append(versions, e.Version)
	}
	return versions, false, nil
}
