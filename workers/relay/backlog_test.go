package relay

import (
	"context"
	"errors"
	"testing"

	"github.com/parley-chat/parley/server/kafka"
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

// A chat with much behind it, because Kafka was away, is read in parts of a
// transaction: not all of it at once, not again and again while nothing can be
// published, and not by a query for each message.
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
	away := errors.New("away")
	r.fail = func() (error, error) { return away, nil }
	for n := 1; n <= 3; n++ {
		if err := re.Cycle(r.ctx); !errors.Is(err, away) {
			t.Fatal(err)
		}
		if reads.rows > n*batch {
			t.Fatalf("%d events read to publish none of them, %d times", reads.rows, n)
		}
	}
	*reads = counted{Store: r.store}
	publish, published := re.cfg.Publish, 0
	r.fail = func() (error, error) { return nil, nil }
	re.cfg.Publish = func(ctx context.Context, records []*kafka.Record) error {
		if reads.rows > published+2*batch {
			t.Fatalf("%d events read with %d published", reads.rows, published)
		}
		published += len(records)
		return publish(ctx, records)
	}
	r.rest(re)
	r.check(true)
	if reads.rows != events || published != events || reads.queries > events/batch+2 {
		t.Fatalf("%d events read by %d queries, %d published", reads.rows, reads.queries, published)
	}
}

// While nothing can be published operators see that something waits, and since when.
func TestBacklogShowsWhileNothingCanBePublished(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	r.must(re.Cycle(r.ctx))
	r.send(r.group())
	r.now = r.now.Add(re.cfg.Sweep)
	r.fail = func() (error, error) { return errors.New("away"), nil }
	if err := re.Cycle(r.ctx); err == nil {
		t.Fatal("published")
	}
	if s := re.Stats(); s.Backlog == 0 || s.Oldest < re.cfg.Sweep {
		t.Fatalf("%+v", s)
	}
	r.fail = func() (error, error) { return nil, nil }
	r.rest(re)
	if s := re.Stats(); s.Backlog != 0 || s.Oldest != 0 {
		t.Fatalf("%+v", s)
	}
}
