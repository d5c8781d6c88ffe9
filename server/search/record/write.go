package record

import (
	"context"
	"slices"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// run carries out calls of a lane, in as few transactions as they fit into.
func (r *Recorder) run(ctx context.Context, group []*call) {
	for len(group) > 0 {
		n := fitting(group)
		r.write(ctx, &r.streams[group[0].lane], group[:n])
		group = group[n:]
	}
}

// fitting is how many calls from the first on fit into a transaction, at least one.
func fitting(group []*call) (n int) {
	rows, size, last := 0, int64(0), part{}
	for ; n < len(group); n++ {
		for _, p := range group[n].parts {
			if rows == 0 || !last.hasRoom(p) {
				rows, last = rows+1, part{}
			}
			last.count, last.size = last.count+p.count, last.size+p.size
		}
		if size += group[n].size; n > 0 && (rows > planRows || size > planBytes) {
			break
		}
	}
	return n
}

// write stores the events of calls in one transaction and leaves the outcome in the calls.
func (r *Recorder) write(ctx context.Context, s *stream, calls []*call) {
	if s.next == 0 || s.next > streamEvents {
		*s = stream{id: r.cfg.NewID(event.SearchStream), next: 1}
	}
	first, rows := s.next, []part(nil)
	for _, c := range calls {
		c.ids = make([]string, 0, MaxEvents)
		for _, p := range c.parts {
			for range p.count {
				c.ids = append(c.ids, search.ID(s.id, s.next))
				s.next++
			}
			rows = appendPart(rows, part{p.count, p.size, slices.Clip(p.events)})
		}
	}
	// Whose goroutine this is may leave; the others' events are stored nevertheless.
	err := r.commits.Repeat(context.WithoutCancel(ctx), r.rows(s.id, first, rows)...)
	for _, c := range calls {
		c.err = err
	}
	if err != nil {
		return
	}
	r.stored.Add(s.next - first)
	if r.cfg.Recorded != nil {
		r.cfg.Recorded(s.id)
	}
}

// rows are the rows of events that begin with a number, each with the one that announces it.
func (r *Recorder) rows(stream string, first int64, parts []part) []store.Write {
	now := r.cfg.Clock()
	writes := make([]store.Write, 0, 2*len(parts))
	for _, p := range parts {
		events := table.SearchEvents{Stream: stream, First: first, Count: p.count, At: now.UnixMilli(), Events: p.events,
			ExpiresAt: now.Add(r.cfg.Retention).Unix()}
		announced := table.Outbox{Shard: event.Shard(stream), AggregateID: stream, FirstVersion: first, Count: p.count,
			CreatedAt: now.UnixMilli()}
		writes = append(writes,
			store.Write{Op: store.OpPut, Key: table.SearchEventsKey(stream, first), Item: events.Item()},
			store.Write{Op: store.OpPut, Key: announced.Key(), Item: announced.Item()})
		first += p.count
	}
	return writes
}
