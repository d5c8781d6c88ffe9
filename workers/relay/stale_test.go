package relay

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// passing is a store whose queries of a chat's outbox rows may read past the position of the
// first row just before it is written.
type passing struct {
	store.Store
	miss bool // the first row, in the next query
}

func (p *passing) Query(ctx context.Context, q store.Query) (store.Page, error) {
	page, err := p.Store.Query(ctx, q)
	if q.Table == store.Outbox && q.From != "" && p.miss && len(page.Rows) > 1 {
		p.miss = false
		page.Rows = slices.Clone(page.Rows[1:])
	}
	return page, err
}

// A query is no snapshot: it may miss a row and return the next. A relay still publishes in
// order, for a chat whose position it has cached and for one that is new to it.
func TestQueryThatMissesARow(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	re := r.relay()
	st := &passing{Store: r.store}
	re.cfg.Store = st
	for range 2 {
		r.send(id)
		r.send(id)
		st.miss = true
		r.now = r.now.Add(time.Minute)
		r.rest(re)
		if st.miss {
			t.Fatal("no query missed a row, expected one")
		}
		r.check(true)
	}
}

// behind is a store whose eventually consistent reads return an old state.
type behind struct {
	store.Store
	old store.Store
}

func (b *behind) at(c store.Consistency) store.Store {
	if c == store.Strong {
		return b.Store
	}
	return b.old
}

func (b *behind) Query(ctx context.Context, q store.Query) (store.Page, error) {
	return b.at(q.Consistency).Query(ctx, q)
}

func (b *behind) Get(ctx context.Context, k store.Key, c store.Consistency) (store.Item, error) {
	return b.at(c).Get(ctx, k, c)
}

func (b *behind) BatchGet(ctx context.Context, k []store.Key, c store.Consistency) ([]store.Item, error) {
	return b.at(c).BatchGet(ctx, k, c)
}

// A relay whose cycles fail reports for how long. One without work is not stalled, nor is one
// that publishes a part of its backlog.
func TestStalled(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	set := &Set{}
	defer set.Add(re)()
	stalled := func(when string, want time.Duration) {
		t.Helper()
		if one, all := re.Stats().Stalled, set.Stats().Stalled; one != want || all != want {
			t.Errorf("%s: the relay is stalled for %v and the set for %v, expected %v", when, one, all, want)
		}
	}
	for range 3 {
		r.now = r.now.Add(time.Minute)
		r.must(re.Cycle(r.ctx))
	}
	stalled("nothing to do", 0)
	r.group()
	r.fail = func() (error, error) { return errors.New("unavailable"), nil }
	for range 3 {
		r.now = r.now.Add(time.Minute)
		if re.Cycle(r.ctx) == nil {
			t.Fatal("a cycle succeeded, expected Kafka's error")
		}
	}
	stalled("Kafka unavailable", 3*time.Minute)
	r.fail = func() (error, error) { return nil, nil }
	r.stable = errors.New("not yet")
	if re.Cycle(r.ctx) == nil {
		t.Fatal("a cycle succeeded, expected the error of the sync")
	}
	stalled("published, not deleted", 0)
	r.now = r.now.Add(time.Minute)
	r.stable = nil
	r.must(re.Cycle(r.ctx))
	stalled("recovered", 0)
}

// A relay does not rely on reads that may be stale: with old rows it would publish nothing,
// with old events it would quarantine rows.
func TestStaleReads(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	re.cfg.Store = &behind{Store: r.store, old: r.store.Clone()}
	id := r.group()
	r.rest(re)
	r.send(id) // found by the sweep
	r.now = r.now.Add(time.Minute)
	r.rest(re)
	r.check(true)
	r.send(id)
	r.send(id)
	re.Nudge(r.commits[len(r.commits)-1]) // does not follow the last one: the outbox is read
	r.rest(re)
	r.check(true)
	if n := re.Stats().Poisoned; n != 0 {
		t.Errorf("%d rows are quarantined, expected none", n)
	}
}
