package relay

import (
	"context"
	"errors"
	"testing"

	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/store"
)

// counted counts the rows of events that are read, and in how many queries.
type counted struct {
	store.Store
	queries, rows int
}

func (c *counted) Query(ctx context.Context, q store.Query) (store.Page, error) {
	page, err := c.Store.Query(ctx, q)
	if q.Table == store.Events {
		c.queries++
		c.rows += len(page.Rows)
	}
	return page, err
}

// A chat with a long backlog is read in parts of a transaction: not all at once, not
// repeatedly while nothing can be published, and not by a query for each message.
func TestLongBacklogIsReadInParts(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	for range 200 {
		r.send(id)
	}
	const events = 202 // with the creation's two
	re := r.relay()
	reads := &counted{Store: r.store}
	re.cfg.Store = reads
	batch := re.cfg.MaxBatch
	down := errors.New("unavailable")
	r.fail = func() (error, error) { return down, nil }
	for n := 1; n <= 3; n++ {
		if err := re.Cycle(r.ctx); !errors.Is(err, down) {
			t.Fatalf("the cycle returned %v, expected %v", err, down)
		}
		if reads.rows > n*batch {
			t.Fatalf("%d events read in %d failed cycles, expected up to %d", reads.rows, n, n*batch)
		}
	}
	*reads = counted{Store: r.store}
	publish, published := re.cfg.Publish, 0
	r.fail = func() (error, error) { return nil, nil }
	re.cfg.Publish = func(ctx context.Context, list []eventlog.Publication) error {
		records := Records(list)
		if reads.rows > published+2*batch {
			t.Fatalf("%d events read with %d published, expected up to two transactions ahead", reads.rows, published)
		}
		published += len(records)
		return publish(ctx, list)
	}
	r.rest(re)
	r.check(true)
	if reads.rows != events || published != events || reads.queries > events/batch+2 {
		t.Fatalf("%d events read by %d queries, expected %d by up to %d; %d published", reads.rows, reads.queries, events,
			events/batch+2, published)
	}
}

// While nothing can be published, the metrics show the backlog and its age.
func TestBacklogShowsWhileNothingCanBePublished(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	r.must(re.Cycle(r.ctx))
	r.send(r.group())
	r.now = r.now.Add(re.cfg.Sweep)
	r.fail = func() (error, error) { return errors.New("unavailable"), nil }
	if err := re.Cycle(r.ctx); err == nil {
		t.Fatal("the cycle succeeded, expected Kafka's error")
	}
	if s := re.Stats(); s.Backlog == 0 || s.Oldest < re.cfg.Sweep {
		t.Fatalf("%+v, expected a backlog at least %v old", s, re.cfg.Sweep)
	}
	r.fail = func() (error, error) { return nil, nil }
	r.rest(re)
	if s := re.Stats(); s.Backlog != 0 || s.Oldest != 0 {
		t.Fatalf("%+v, expected no backlog", s)
	}
}
