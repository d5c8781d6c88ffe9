// Package sortedlist holds things in order of a key. A stream has a list of its chats, up to
// 10,000 of them: it takes a third of what a map does, and grows at its end while the
// stream opens.
//
// A List is guarded by its owner.
package sortedlist

import (
	"slices"
	"strings"
)

// Keyed is what a List holds: something with a key that never changes.
type Keyed interface {
	comparable
	Key() string
}

// List holds things in order of their keys, one for each.
type List[T Keyed] []T

func (l List[T]) find(key string) (int, bool) {
	if n := len(l); n == 0 || l[n-1].Key() < key {
		return n, false
	}
	return slices.BinarySearchFunc(l, key, func(x T, key string) int { return strings.Compare(x.Key(), key) })
}

// Of returns what has a key; the zero value if nothing does.
func (l List[T]) Of(key string) (x T) {
	if i, ok := l.find(key); ok {
		return l[i]
	}
	return x
}

// Add adds something whose key is not there.
func (l *List[T]) Add(x T) {
	i, _ := l.find(x.Key())
	*l = slices.Insert(*l, i, x)
}

// Remove reports whether the very same thing was there.
func (l *List[T]) Remove(x T) bool {
	i, ok := l.find(x.Key())
	if !ok || (*l)[i] != x {
		return false
	}
	*l = slices.Delete(*l, i, i+1)
	return true
}
