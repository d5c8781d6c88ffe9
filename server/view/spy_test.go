package view_test

import (
	"context"
	"sync"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// spy counts reads and can act before one of them, hide an item, or show an old
// one. Its weak reads are as old as can be: they show nothing.
type spy struct {
	store.Store
	reads  int
	before func(read int)
	hide   store.Key
	old    map[store.Key]store.Item

	mu    sync.Mutex
	table map[store.Table]int // rows and keys that were read; nil: not counted
	wait  chan struct{}       // queries wait for it; nil: they do not
	began chan struct{}       // a query that waits says so
}

func (s *spy) read(t store.Table, n int) {
	s.mu.Lock()
	if s.table != nil {
		s.table[t] += n
	}
	s.mu.Unlock()
}

// step is the beginning of a read.
func (s *spy) step() {
	s.mu.Lock()
	n, before := s.reads, s.before
	s.reads++
	s.mu.Unlock()
	if before != nil {
		before(n)
	}
}

// counting makes the spy count what f reads, by table.
func (s *spy) counting(f func()) map[store.Table]int {
	s.table = map[store.Table]int{}
	f()
	got := s.table
	s.table = nil
	return got
}

func (s *spy) Get(ctx context.Context, k store.Key, c store.Consistency) (store.Item, error) {
	if k == table.ClockKey() { // now and then
		return s.Store.Get(ctx, k, c)
	}
	s.step()
	s.read(k.Table, 1)
	if k == s.hide || c != store.Strong {
		return nil, nil
	}
	return s.Store.Get(ctx, k, c)
}

func (s *spy) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) ([]store.Item, error) {
	s.step()
	items, err := s.Store.BatchGet(ctx, keys, c)
	for i, k := range keys {
		s.read(k.Table, 1)
		if err == nil && (k == s.hide || c != store.Strong) {
			items[i] = nil
		}
		if it, ok := s.old[k]; err == nil && ok {
			items[i] = it
		}
	}
	return items, err
}

func (s *spy) Query(ctx context.Context, q store.Query) (store.Page, error) {
	s.step()
	if q.Consistency != store.Strong {
		return store.Page{}, nil
	}
	page, err := s.Store.Query(ctx, q)
	s.read(q.Table, len(page.Rows))
	for i, row := range page.Rows {
		if row.Key == s.hide {
			page.Rows = append(page.Rows[:i:i], page.Rows[i+1:]...)
			break
		}
	}
	if s.wait != nil {
		s.began <- struct{}{}
		<-s.wait
	}
	return page, err
}
