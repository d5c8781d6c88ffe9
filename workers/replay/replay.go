// Package replay publishes events again: it puts rows back into the outbox for
// chosen events of the event store, and the relay does the rest.
//
// Only events that were published before are chosen, so that a replay never brings
// a later event ahead of an earlier one that nobody has seen; readers drop what they
// have seen by generation, chat and version. The package owns the choice and the
// rows; it does not publish.
//
// Concurrency: all functions may be called by anybody; who replays the same events
// at the same time writes the same rows.
package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Limits of a call.
const (
	MaxChats  = 1_000
	MaxEvents = 100_000
	maxRun    = 100 // events of one row, which the relay publishes in one transaction
)

// Choice says which events are wanted again.
type Choice struct {
	Chats        []string  // empty: all, which reads the whole event store
	From, To     int64     // versions, both included; 0: open
	Types        []string  // of events; empty: all
	After, Until time.Time // of the events' times, the second excluded; zero: open
}

// Report tells what was done.
type Report struct {
	Events int // that will be published again
	Rows   int // written
	New    int // left alone: they are still to be published for the first time
	More   bool
}

// ErrInvalid says what is wrong with a choice.
var ErrInvalid = errors.New("replay: invalid choice")

func (c Choice) validate() error {
	switch {
	case len(c.Chats) > MaxChats:
		return fmt.Errorf("%w: at most %d chats", ErrInvalid, MaxChats)
	case c.From < 0 || c.To < 0 || c.To > 0 && c.To < c.From:
		return fmt.Errorf("%w: versions %d to %d", ErrInvalid, c.From, c.To)
	case !c.After.IsZero() && !c.Until.IsZero() && !c.After.Before(c.Until):
		return fmt.Errorf("%w: after is not before until", ErrInvalid)
	}
	for _, t := range c.Types {
		if event.Prototype(t) == nil {
			return fmt.Errorf("%w: there is no event type %q", ErrInvalid, t)
		}
	}
	return nil
}

// wants looks at an event; one that cannot be read is not wanted, because it cannot
// be published.
func (c Choice) wants(row store.Row) (version int64, ok bool) {
	e, err := table.EventFrom(row)
	if err != nil {
		return 0, false
	}
	if len(c.Types) > 0 && !slices.Contains(c.Types, e.Type) {
		return 0, false
	}
	decoded, err := event.Unmarshal(e.Type, e.Payload)
	if err != nil {
		return 0, false
	}
	md := decoded.GetMetadata()
	version, at := md.GetVersion(), md.GetEventTime().AsTime()
	return version, version >= c.From && (c.To == 0 || version <= c.To) &&
		(c.After.IsZero() || !at.Before(c.After)) && (c.Until.IsZero() || at.Before(c.Until))
}

// Run chooses events and, unless it is a dry run, writes the rows that make the
// relay publish them again. Report.More says that there were more than MaxEvents:
// what was chosen is done, in no order of chats that a caller may rely on.
func Run(ctx context.Context, st store.Store, now func() time.Time, c Choice, dryRun bool) (Report, error) {
	if err := c.validate(); err != nil {
		return Report{}, err
	}
	var rep Report
	chats := c.Chats
	if len(chats) == 0 {
		var err error
		if chats, rep.More, err = allChats(ctx, st); err != nil {
			return rep, err
		}
	}
	chats = slices.Compact(slices.Sorted(slices.Values(chats)))
	for _, id := range chats {
		if rep.Events >= MaxEvents {
			rep.More = true
			break
		}
		if err := replayChat(ctx, st, now, c, id, dryRun, &rep); err != nil {
			return rep, fmt.Errorf("replay %s: %w", id, err)
		}
	}
	return rep, nil
}

// allChats reads the ids of all chats from their heads.
func allChats(ctx context.Context, st store.Store) (ids []string, more bool, err error) {
	s := store.Scan{Table: store.ChatCounters, Segments: 1}
	for first := true; first || s.Cursor != ""; first = false {
		page, err := st.Scan(ctx, s)
		if err != nil {
			return nil, false, err
		}
		for _, row := range page.Rows {
			if len(ids) == MaxEvents {
				return ids, true, nil
			}
			ids = append(ids, row.Key.PK)
		}
		s.Cursor = page.Cursor
	}
	return ids, false, nil
}

func replayChat(ctx context.Context, st store.Store, now func() time.Time, c Choice, id string, dryRun bool, rep *Report) error {
	versions, more, err := choose(ctx, st, c, id, MaxEvents-rep.Events)
	if err != nil || len(versions) == 0 {
		return err
	}
	rep.More = rep.More || more
	// After the events were read: an event without a row before it was published.
	next, err := unpublished(ctx, st, id)
	if err != nil {
		return err
	}
	if next > 0 {
		n, _ := slices.BinarySearch(versions, next)
		rep.New += len(versions) - n
		versions = versions[:n]
	}
	rep.Events += len(versions)
	var writes []store.Write
	for len(versions) > 0 {
		n := 1
		for n < len(versions) && n < maxRun && versions[n] == versions[0]+int64(n) {
			n++
		}
		o := table.Outbox{Shard: event.Shard(id), ChatID: id, FirstVersion: versions[0], Count: int64(n), CreatedAt: now().UnixMilli(), Replay: true}
		writes = append(writes, store.Write{Op: store.OpPut, Key: o.Key(), Item: o.Item()})
		versions = versions[n:]
	}
	rep.Rows += len(writes)
	if dryRun {
		return nil
	}
	for chunk := range slices.Chunk(writes, store.MaxBatchWrite) {
		if err := st.BatchWrite(ctx, chunk); err != nil {
			return fmt.Errorf("write rows: %w", err)
		}
	}
	return nil
}

// choose reads the versions of a chat's wanted events, in order.
func choose(ctx context.Context, st store.Store, c Choice, id string, limit int) (versions []int64, more bool, err error) {
	q := store.Query{Table: store.Events, PK: id, From: table.Number(c.From), Consistency: store.Strong}
	if c.To > 0 {
		q.To = table.Number(c.To)
	}
	for first := true; first || q.Cursor != ""; first = false {
		page, err := st.Query(ctx, q)
		if err != nil {
			return nil, false, fmt.Errorf("read events: %w", err)
		}
		for _, row := range page.Rows {
			v, ok := c.wants(row)
			if !ok {
				continue
			}
			if len(versions) == limit {
				return versions, true, nil
			}
			versions = append(versions, v)
		}
		q.Cursor = page.Cursor
	}
	return versions, false, nil
}

// unpublished returns the first version of a chat that waits to be published for the
// first time, 0 if none does.
func unpublished(ctx context.Context, st store.Store, id string) (int64, error) {
	q := store.Query{
		Table: store.Outbox, PK: table.ShardKey(event.Shard(id)), From: id + "#", To: id + "#~", Consistency: store.Strong,
	}
	for first := true; first || q.Cursor != ""; first = false {
		page, err := st.Query(ctx, q)
		if err != nil {
			return 0, fmt.Errorf("read outbox: %w", err)
		}
		for _, row := range page.Rows {
			o, err := table.OutboxFrom(row)
			if err != nil {
				return 0, err
			}
			if !o.Replay {
				return o.FirstVersion, nil
			}
		}
		q.Cursor = page.Cursor
	}
	return 0, nil
}
