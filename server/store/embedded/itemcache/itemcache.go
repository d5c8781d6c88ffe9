// Package itemcache keeps a few decoded items in memory.
//
// It owns which items stay and what they keep in memory. The holder of the lock of a Set
// decides whether an item is what the store holds.
package itemcache

import (
	"strings"

	"github.com/parley-chat/parley/server/store"
)

// Ways is the number of items in a Set, and MaxItem the size of an item, in bytes, up to
// which it is cached.
const (
	Ways    = 4
	MaxItem = 1024
)

// Set caches the items that were used last. The caller must hold the lock that guards it.
// The zero value is empty.
type Set struct {
	items [Ways]entry // the last used first
}

type entry struct {
	key  string     // empty: none
	item store.Item // nil: not known
}

// Get returns the cached item of a key.
func (s *Set) Get(key []byte) (store.Item, bool) {
	i := s.slot(key)
	if i == Ways || s.items[i].item == nil {
		return nil, false
	}
	s.toFront(i)
	return s.items[0].item, true
}

// Hide makes the cached item of a key count no more.
func (s *Set) Hide(key []byte) {
	if i := s.slot(key); i < Ways {
		s.items[i].item = nil
	}
}

// Put caches the item of a key, in place of the one that was not used for longest. One that
// is too large is not known from then on.
func (s *Set) Put(key []byte, it store.Item) {
	if it.Size() <= MaxItem {
		own := make(store.Item, len(it))
		detach(own, it)
		it = own
	}
	s.put(key, it)
}

// Take caches an item as Put does, but keeps the item itself: the caller must not use it
// afterwards. foreign says that some of its texts may be parts of something larger, which
// is copied.
func (s *Set) Take(key []byte, it store.Item, foreign bool) {
	if foreign && it.Size() <= MaxItem {
		detach(it, it)
	}
	s.put(key, it)
}

func (s *Set) put(key []byte, it store.Item) {
	if it.Size() > MaxItem {
		s.Hide(key)
		return
	}
	i := s.slot(key)
	if i == Ways {
		i--
		s.items[i].key = string(key)
	}
	s.items[i].item = it
	s.toFront(i)
}

// All calls f with each cached item and its key.
func (s *Set) All(f func(key string, it store.Item)) {
	for _, e := range s.items {
		if e.item != nil {
			f(e.key, e.item)
		}
	}
}

func (s *Set) slot(key []byte) int {
	for i := range s.items {
		if s.items[i].key == string(key) {
			return i
		}
	}
	return Ways
}

func (s *Set) toFront(i int) {
	e := s.items[i]
	copy(s.items[1:i+1], s.items[:i])
	s.items[0] = e
}

// detach copies an item to own, which may be the same, so that it keeps nothing else in
// memory: the text of a message, of which a preview is a part, or the batch that it was
// decoded from.
func detach(own, it store.Item) {
	size := 0
	for _, a := range it {
		size += len(a.Value.Str())
	}
	var text strings.Builder
	text.Grow(size)
	for _, a := range it {
		text.WriteString(a.Value.Str())
	}
	rest := text.String()
	for i, a := range it {
		n := len(a.Value.Str())
		switch a.Value.Kind() {
		case store.KindString:
			a.Value = store.String(rest[:n])
		case store.KindBytes:
			a.Value = store.BytesOf(rest[:n])
		}
		own[i], rest = a, rest[n:]
	}
}
