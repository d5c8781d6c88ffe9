package api_test

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/parley-chat/parley/server/store"
)

// tally is the store below all others. It writes down which calls it gets, and can lose
// the answers of plans.
type tally struct {
	store.Store
	mu    sync.Mutex
	calls []string
	left  int      // plans that are still carried out, if it is not 0: from then on the store takes none
	gone  int      // plans that end without an answer: the first is lost, the next finds the store closed
	ids   []string // of the requests that plans record, in order: "fresh" or "looked up"
}

// tally of the server's store.
func (s *server) tally() *tally {
	t, _ := s.store.Store.(*tally)
	return t
}

// of returns the calls that do makes.
func (t *tally) of(do func()) string {
	t.mu.Lock()
	t.calls = nil
	t.mu.Unlock()
	do()
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.calls, ", ")
}

// lose makes the next plan end without an answer, and without a way to find out.
func (t *tally) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = 2
}

// only lets n more plans be carried out, and then none; with -1 all again.
func (t *tally) only(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = n + 1
}

func (t *tally) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls = append(t.calls, fmt.Sprintf(format, args...))
}

func (t *tally) Get(ctx context.Context, key store.Key, c store.Consistency) (store.Item, error) {
	t.note("get %s", key.Table)
	return t.Store.Get(ctx, key, c)
}

func (t *tally) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) ([]store.Item, error) {
	var tables []string
	for _, k := range keys {
		tables = append(tables, fmt.Sprint(k.Table))
	}
	t.note("get %s", strings.Join(tables, "+"))
	return t.Store.BatchGet(ctx, keys, c)
}

func (t *tally) Query(ctx context.Context, q store.Query) (store.Page, error) {
	t.note("query %s", q.Table)
	return t.Store.Query(ctx, q)
}

func (t *tally) Transact(ctx context.Context, p store.Plan) error {
	if p.Writes[0].Key.Table == store.Meta {
		return t.Store.Transact(ctx, p) // the clock's stamp, which goes by time
	}
	t.note("plan")
	t.mu.Lock()
	for _, w := range p.Writes {
		if w.Key.Table == store.IdempotencyKeys {
			t.ids = append(t.ids, map[bool]string{true: "fresh", false: "looked up"}[w.Fresh])
		}
	}
	gone, left := t.gone, t.left
	t.gone = max(gone-1, 0)
	if left > 1 {
		t.left--
	}
	t.mu.Unlock()
	if left == 1 {
		return fmt.Errorf("%w (injected)", store.ErrUnavailable)
	}
	switch gone {
	case 2:
		return fmt.Errorf("%w (injected)", store.ErrAmbiguous)
	case 1:
		return fmt.Errorf("%w (injected)", store.ErrClosed)
	}
	return t.Store.Transact(ctx, p)
}

func (t *tally) Durable(ctx context.Context) error {
	t.note("durable")
	return t.Store.Durable(ctx)
}
