package embedded

import (
	"fmt"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
)

// requests writes rows of requests, on the condition that they are absent.
type requests struct {
	*testing.T
	s *Store
}

func (r requests) key(i int) store.Key {
	return store.Key{Table: store.IdempotencyKeys, PK: fmt.Sprint("request", i)}
}

func (r requests) put(i int, expires int64) error {
	it := store.NewItem(store.Attr{Name: store.ExpiresAtField, Value: store.Int(expires)})
	return r.s.Transact(r.Context(), store.Plan{Writes: []store.Write{
		{Op: store.OpPut, Key: r.key(i), Item: it, Cond: store.Absent(), Name: "request"}}})
}

// settle moves all rows to the lowest level.
func (r requests) settle() {
	r.Helper()
	testkit.Must(r, r.s.db.Flush())
	testkit.Must(r, r.s.db.Compact(r.Context(), []byte{0}, []byte{0xff}, false))
}

// A row is there or not, wherever it lies, with filters and without.
func TestAbsentRows(t *testing.T) {
	for name, unfiltered := range map[string]bool{"filters": false, "no filters": true} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1_800_000_000, 0)
			r := requests{t, open1(t, Options{Dir: t.TempDir(), noSync: true, Clock: func() time.Time { return now }})}
			r.s.unfiltered.Store(unfiltered)
			later := now.Unix() + 60
			for i := range 100 {
				testkit.Must(t, r.put(i, later))
			}
			for i := range 10 { // put and deleted at the lowest level, deleted above it
				w := store.Write{Op: store.OpDelete, Key: r.key(i)}
				testkit.Must(t, r.s.Transact(t.Context(), store.Plan{Writes: []store.Write{w}}))
				if i == 4 {
					r.settle()
				}
			}
			testkit.Must(t, r.put(200, later)) // not settled
			testkit.Must(t, r.put(201, now.Unix()-1))
			r.settle()
			testkit.Must(t, r.put(300, later))
			testkit.Must(t, r.put(301, now.Unix()-1))
			for i, there := range map[int]bool{0: false, 9: false, 10: true, 99: true, 100: false,
				200: true, 201: false, 300: true, 301: false, 302: false} {
				if err := r.put(i, later); (failure(err) != "") != there {
					t.Errorf("row %d: %v, want it there: %v", i, err, there)
				}
				if err := r.put(i, later); failure(err) == "" {
					t.Errorf("row %d: %v, want it there by now", i, err)
				}
			}
		})
	}
}

// Requests are new nearly always: the lowest level's filters say so, and no block is read,
// as long as these filters are not too large.
func TestNewRequestsReadNoBlocks(t *testing.T) {
	r := requests{t, open1(t, Options{Dir: t.TempDir(), noSync: true})}
	for i := range 500 {
		testkit.Must(t, r.put(i, 4_000_000_000))
	}
	r.settle()
	filtered := func(from int) int64 {
		before := r.s.db.Metrics().Filter.Hits
		for i := from; i < from+100; i++ {
			testkit.Must(t, r.put(i, 4_000_000_000))
		}
		return r.s.db.Metrics().Filter.Hits - before
	}
	r.s.weigh()
	if n := filtered(10_000); n < 90 { // one of 120 is not noticed
		t.Errorf("%d of 100 new requests are noticed by filters", n)
	}
	r.s.blocks = 1
	r.s.weigh()
	testkit.Equal(t, "noticed without room for filters", filtered(20_000), 0)
}
