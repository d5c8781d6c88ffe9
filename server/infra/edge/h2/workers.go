package h2

import "sync"

// maxIdle is how many workers wait for work at the most; others end.
const maxIdle = 64

// workers are goroutines that serve one stream after the other. The stack of a new
// goroutine is small: on the way of a call it would be copied, again and again, until it is
// large enough. Those of workers have grown.
type workers struct {
	mu    sync.Mutex
	idle  []chan func() // the last to become idle works first: the others' stacks may shrink
	ended bool
}

// do has a worker call f. It does not wait.
func (w *workers) do(f func()) {
	w.mu.Lock()
	if n := len(w.idle); n > 0 {
		next := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		next <- f // there is room: it is empty, and no other goroutine has it
		return
	}
	w.mu.Unlock()
	go w.work(f)
}

func (w *workers) work(f func()) {
	for next := make(chan func(), 1); f != nil; f = <-next {
		f()
		if !w.rest(next) {
			return
		}
	}
}

// rest makes a worker idle, which finds its work in next; false: there are enough.
func (w *workers) rest(next chan func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || len(w.idle) == maxIdle {
		return false
	}
	w.idle = append(w.idle, next)
	return true
}

// end ends the workers that are idle, and the others after their work.
func (w *workers) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, next := range w.idle {
		close(next)
	}
	w.idle, w.ended = nil, true
}
