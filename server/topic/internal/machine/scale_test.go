package machine

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
)

// endless is a log of batches of 1,000 messages, all alike. It counts what is asked of it.
type endless struct {
	batch *commitlog.Batch
	asked int
}

func newEndless(t *testing.T) *endless {
	list := make([]*commitlog.Message, 1000)
	for i := range list {
		list[i] = &commitlog.Message{Payload: []byte("all alike")}
	}
	b, err := commitlog.NewBatch(0, time.Unix(0, 0), list)
	must(t, err)
	return &endless{batch: b}
}

// At returns batches; all are in memory.
func (e *endless) At(position int64) (*commitlog.Batch, Residence) {
	e.asked++
	b := *e.batch
	b.Base = position / 1000 * 1000
	return &b, Resident
}

// HQ-R3, HQ-R8: 50 groups of a partition with a million messages: one read of the log for a
// hundred messages, none for each; and what is kept of the groups follows from the gaps in what
// they have acknowledged, and not from how much that is.
func TestMillionMessages(t *testing.T) {
	const end, groups = 1_000_000, 50
	log := newEndless(t)
	p := New(0, 0, end, log)
	now := time.Unix(1_000_000, 0)
	var members []*Member
	for g := range groups {
		c := plain(string(rune('A' + g)))
		group, _, _, err := p.Subscribe(c, Begin{Start: 0, Backfill: true})
		must(t, err)
		m, err := group.Attach("m", nil, NewBudget(MaxMessages, MaxBytes, true))
		must(t, err)
		members = append(members, m)
	}
	for _, m := range members {
		log.asked = 0
		pieces, _ := m.Group().Next(now, 100, nil)
		if len(pieces) != 1 || pieces[0].To-pieces[0].From != 100 || log.asked > 2 {
			t.Fatalf("%d pieces, the log is asked %d times", len(pieces), log.asked)
		}
		m.Ack(Positions{Base: 0, Count: 100}, nil)
	}
	var dst []Piece
	for _, m := range members {
		for at := int64(100); at < end; {
			dst, _ = m.Group().Next(now, 50_000, dst[:0])
			from := at
			for _, x := range dst {
				at = x.Batch.Base + int64(x.To)
			}
			if at == from {
				t.Fatalf("nothing comes after %d", at)
			}
			// Two halves, the later one first.
			half := from + (at-from)/2
			m.Ack(Positions{Base: half, Count: at - half}, nil)
			if n := p.Tracked(); n > 4*groups {
				t.Fatalf("%d entries are kept", n)
			}
			m.Ack(Positions{Base: from, Count: half - from}, nil)
		}
	}
	is(t, "all is complete", p.Watermark(), end)
	if n := p.Tracked(); n > 3*groups {
		t.Errorf("%d entries are kept in the end", n)
	}
}
