// Package workqueue holds work that is to be done at a time, and performs it.
//
// It owns the order and the goroutines; it does not own what the work is. A Queue is
// guarded by its owner; Run may be called once for a machine.
package workqueue

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Queue orders work by time, then by the order in which it came. The zero value is
// empty.
type Queue[W any] struct {
	items heaped[W]
	seq   uint64
}

type item[W any] struct {
	at   time.Time
	seq  uint64
	work W
}

type heaped[W any] []item[W]

func (h heaped[W]) Len() int { return len(h) }
func (h heaped[W]) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].seq < h[j].seq
}
func (h heaped[W]) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *heaped[W]) Push(x any)   { *h = append(*h, x.(item[W])) }
func (h *heaped[W]) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = item[W]{}
	*h = (*h)[:last]
	return x
}

// Push queues work for a time.
func (q *Queue[W]) Push(at time.Time, w W) {
	q.seq++
	heap.Push(&q.items, item[W]{at: at, seq: q.seq, work: w})
}

// Pop removes the next piece of work that is due. Without any, ok is false and wait
// says for how long there will be none; zero means for good.
func (q *Queue[W]) Pop(now time.Time) (w W, wait time.Duration, ok bool) {
	if len(q.items) == 0 {
		return w, 0, false
	}
	if d := q.items[0].at.Sub(now); d > 0 {
		return w, d, false
	}
	return heap.Pop(&q.items).(item[W]).work, 0, true
}

// Machine is something that has work.
type Machine[W any] struct {
	Next   func() (w W, wait time.Duration, ok bool) // as Queue.Pop
	Do     func(ctx context.Context, w W) error
	Failed func(error)     // receives the errors of Do
	Wake   <-chan struct{} // signals that there may be work
	Signal func()          // wakes another goroutine
	Tick   func()          // once a second
}

// Run performs a machine's work with some goroutines until ctx ends.
func Run[W any](ctx context.Context, goroutines int, m Machine[W]) {
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() { m.work(ctx) })
	}
	wg.Go(func() {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				m.Tick()
			}
		}
	})
	wg.Wait()
}

func (m *Machine[W]) work(ctx context.Context) {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for ctx.Err() == nil {
		w, wait, ok := m.Next()
		if ok {
			m.Signal() // there may be more, for another goroutine
			if err := m.Do(ctx, w); err != nil && ctx.Err() == nil {
				m.Failed(err)
			}
			continue
		}
		if wait <= 0 {
			wait = time.Hour
		}
		t.Reset(wait)
		select {
		case <-ctx.Done():
		case <-m.Wake:
		case <-t.C:
		}
	}
}
