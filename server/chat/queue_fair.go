package chat

import "slices"

// fairQueue is what waits for one chat. Callers have their turns one after the other,
// with one element each; the elements of a caller keep their order. The zero value is
// empty.
type fairQueue[T comparable] struct {
	turns   []*callerQueue[T] // in their order; none is empty
	callers map[string]*callerQueue[T]
	n       int
}

type callerQueue[T comparable] struct {
	caller string
	waits  []T
}

// len is the number of elements.
func (f *fairQueue[T]) len() int { return f.n }

// push adds x behind what its caller waits for.
func (f *fairQueue[T]) push(caller string, x T) {
	t := f.of(caller)
	if len(t.waits) == 0 {
		f.turns = append(f.turns, t)
	}
	t.waits = append(t.waits, x)
	f.n++
}

// pushFront puts x in front of all others: it was popped, and has to wait once more.
func (f *fairQueue[T]) pushFront(caller string, x T) {
	t := f.of(caller)
	if i := slices.Index(f.turns, t); i >= 0 {
		f.turns = slices.Delete(f.turns, i, i+1)
	}
	f.turns = slices.Insert(f.turns, 0, t)
	t.waits = slices.Insert(t.waits, 0, x)
	f.n++
}

func (f *fairQueue[T]) of(caller string) *callerQueue[T] {
	t := f.callers[caller]
	if t == nil {
		t = &callerQueue[T]{caller: caller}
		if f.callers == nil {
			f.callers = map[string]*callerQueue[T]{}
		}
		f.callers[caller] = t
	}
	return t
}

// peek returns the element whose turn it is. The queue must not be empty.
func (f *fairQueue[T]) peek() T { return f.turns[0].waits[0] }

// pop removes that element; its caller's next turn comes after those of all others.
func (f *fairQueue[T]) pop() T {
	t := f.turns[0]
	x := t.waits[0]
	f.turns = slices.Delete(f.turns, 0, 1)
	t.waits = slices.Delete(t.waits, 0, 1)
	f.n--
	if len(t.waits) > 0 {
		f.turns = append(f.turns, t)
	} else {
		delete(f.callers, t.caller)
	}
	return x
}

// remove removes x, wherever it stands.
func (f *fairQueue[T]) remove(caller string, x T) {
	t := f.callers[caller]
	if t == nil {
		return
	}
	i := slices.Index(t.waits, x)
	if i < 0 {
		return
	}
	f.n--
	if t.waits = slices.Delete(t.waits, i, i+1); len(t.waits) == 0 {
		f.turns = slices.DeleteFunc(f.turns, func(o *callerQueue[T]) bool { return o == t })
		delete(f.callers, caller)
	}
}
