package queue

import "slices"

// line is what waits for one chat. Callers have their turns one after the other, with one
// of theirs each; what a caller has waiting keeps its order. The zero line is empty.
type line[T comparable] struct {
	turns   []*turn[T] // in their order; none is empty
	callers map[string]*turn[T]
	n       int
}

type turn[T comparable] struct {
	caller string
	waits  []T
}

// len is the number of those who wait.
func (l *line[T]) len() int { return l.n }

// push puts x at the end of what its caller waits for.
func (l *line[T]) push(caller string, x T) {
	t := l.of(caller)
	if len(t.waits) == 0 {
		l.turns = append(l.turns, t)
	}
	t.waits = append(t.waits, x)
	l.n++
}

// giveBack puts x in front of all others: it was taken, and has to wait once more.
func (l *line[T]) giveBack(caller string, x T) {
	t := l.of(caller)
	if i := slices.Index(l.turns, t); i >= 0 {
		l.turns = slices.Delete(l.turns, i, i+1)
	}
	l.turns = slices.Insert(l.turns, 0, t)
	t.waits = slices.Insert(t.waits, 0, x)
	l.n++
}

func (l *line[T]) of(caller string) *turn[T] {
	t := l.callers[caller]
	if t == nil {
		t = &turn[T]{caller: caller}
		if l.callers == nil {
			l.callers = map[string]*turn[T]{}
		}
		l.callers[caller] = t
	}
	return t
}

// first is whose turn it is. The line must not be empty.
func (l *line[T]) first() T { return l.turns[0].waits[0] }

// take removes the first; its caller's next turn comes after those of all others.
func (l *line[T]) take() T {
	t := l.turns[0]
	x := t.waits[0]
	l.turns = slices.Delete(l.turns, 0, 1)
	t.waits = slices.Delete(t.waits, 0, 1)
	l.n--
	if len(t.waits) > 0 {
		l.turns = append(l.turns, t)
	} else {
		delete(l.callers, t.caller)
	}
	return x
}

// remove takes x out, wherever it stands.
func (l *line[T]) remove(caller string, x T) {
	t := l.callers[caller]
	if t == nil {
		return
	}
	i := slices.Index(t.waits, x)
	if i < 0 {
		return
	}
	l.n--
	if t.waits = slices.Delete(t.waits, i, i+1); len(t.waits) == 0 {
		l.turns = slices.DeleteFunc(l.turns, func(o *turn[T]) bool { return o == t })
		delete(l.callers, caller)
	}
}
