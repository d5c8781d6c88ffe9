package delivery

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

// workQueue orders work by time, then by the order in which it came. The zero value is
// empty. Its owner guards it.
type workQueue[W any] struct {
	items workHeap[W]
	seq   uint64
}

type workItem[W any] struct {
	at   time.Time
	seq  uint64
	work W
}

type workHeap[W any] []workItem[W]

func (h workHeap[W]) Len() int { return len(h) }
func (h workHeap[W]) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].seq < h[j].seq
}
func (h workHeap[W]) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *workHeap[W]) Push(x any)   { *h = append(*h, x.(workItem[W])) }
func (h *workHeap[W]) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = workItem[W]{}
	*h = (*h)[:last]
	return x
}

// Push queues work for a time.
func (q *workQueue[W]) Push(at time.Time, w W) {
	q.seq++
	heap.Push(&q.items, workItem[W]{at: at, seq: q.seq, work: w})
}

// Pop removes the next piece of work that is due. Without any, ok is false and wait
// says for how long there will be none; zero means for good.
func (q *workQueue[W]) Pop(now time.Time) (w W, wait time.Duration, ok bool) {
	if len(q.items) == 0 {
		return w, 0, false
	}
	if d := q.items[0].at.Sub(now); d > 0 {
		return w, d, false
	}
	return heap.Pop(&q.items).(workItem[W]).work, 0, true
}

// workMachine is something that has work.
type workMachine[W any] struct {
	Next   func() (w W, wait time.Duration, ok bool) // as workQueue.Pop
	Do     func(ctx context.Context, w W) error
	Failed func(error)     // receives the errors of Do
	Wake   <-chan struct{} // signals that there may be work
	Signal func()          // wakes another goroutine
	Tick   func()          // once a second
}

// runWork performs a machine's work with some goroutines until ctx ends.
func runWork[W any](ctx context.Context, goroutines int, m workMachine[W]) {
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() { m.work(ctx) })
	}
	wg.Go(func() { wait.Every(ctx, time.Second, m.Tick) })
	wg.Wait()
}

func (m *workMachine[W]) work(ctx context.Context) {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for ctx.Err() == nil {
		w, idle, ok := m.Next()
		if ok {
			m.Signal() // there may be more, for another goroutine
			if err := m.Do(ctx, w); err != nil && ctx.Err() == nil {
				m.Failed(err)
			}
			continue
		}
		if idle <= 0 {
			idle = time.Hour
		}
		t.Reset(idle)
		select {
		case <-ctx.Done():
		case <-m.Wake:
		case <-t.C:
		}
	}
}
