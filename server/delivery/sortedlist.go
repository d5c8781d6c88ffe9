package delivery

import (
	"slices"
	"strings"
)

// keyed is what a sortedList holds: something with a key that never changes.
type keyed interface {
	comparable
	Key() string
}

// sortedList holds things in order of their keys, one for each. A stream has a list of its chats, up to 10,000: it
// takes a third of the memory of a map, and grows at its end while the stream opens. Its owner guards it.
type sortedList[T keyed] []T

func (l sortedList[T]) find(key string) (int, bool) {
	if n := len(l); n == 0 || l[n-1].Key() < key {
		return n, false
	}
	return slices.BinarySearchFunc(l, key, func(x T, key string) int { return strings.Compare(x.Key(), key) })
}

// Of returns what has a key; the zero value if nothing does.
func (l sortedList[T]) Of(key string) (x T) {
	if i, ok := l.find(key); ok {
		return l[i]
	}
	return x
}

// Add adds something whose key is not there.
func (l *sortedList[T]) Add(x T) {
	i, _ := l.find(x.Key())
	*l = slices.Insert(*l, i, x)
}

// Remove reports whether the very same thing was there.
func (l *sortedList[T]) Remove(x T) bool {
	i, ok := l.find(x.Key())
	if !ok || (*l)[i] != x {
		return false
	}
	*l = slices.Delete(*l, i, i+1)
	return true
}
