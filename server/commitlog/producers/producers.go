// Package producers remembers which numbers of a producer a partition has stored, so that a
// publish can be repeated.
//
// It owns the choice of what is remembered and its encoding; it stores nothing.
// Concurrency: the caller of a Window must hold the lock of its partition. A Cache is safe
// for concurrent use.
package producers

import (
	"cmp"
	"container/list"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
)

// Remembered is how many numbers of a producer are remembered: the highest.
const Remembered = 64

// Errors of this package.
var (
	ErrTooOld = errors.New("older than all numbers that are remembered")
	ErrFormat = errors.New("not an encoding of a number")
)

// Hash is the hash of a request. It proves that a repetition has the same content. The zero
// Hash proves nothing: it stands for a request whose content is not compared.
//
// It is the beginning of a SHA-256. 16 bytes suffice: a producer that looks for two requests
// with the same hash must try 2^64 of them, and gains the loss of its own messages.
type Hash [16]byte

// Published is a number that was stored.
type Published struct {
	Number int64
	Base   int64 // position of the first message
	Time   int64 // unix ms
	Count  int32 // of messages; 0 if the partition has none of the request and only remembers it
	Hash   Hash
}

// The first version has no hash. Earlier releases wrote it, and numbers whose content is not
// compared still have it.
const (
	version       = 1
	size          = 1 + 3*8 + 4
	hashedVersion = 2
	hashedSize    = size + len(Hash{})
)

// Append encodes p.
func (p Published) Append(b []byte) []byte {
	at := len(b)
	b = p.AppendPlain(b)
	if p.Hash == (Hash{}) {
		return b
	}
	b[at] = hashedVersion
	return append(b, p.Hash[:]...)
}

// AppendPlain encodes p without its hash, as all releases read it.
func (p Published) AppendPlain(b []byte) []byte {
	b = append(b, version)
	for _, n := range [...]int64{p.Number, p.Base, p.Time} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return binary.BigEndian.AppendUint32(b, uint32(p.Count))
}

// Parse decodes what Append or AppendPlain encoded.
func Parse(v []byte) (p Published, err error) {
	plain := len(v) == size && v[0] == version
	if !plain && (len(v) != hashedSize || v[0] != hashedVersion) {
		return p, ErrFormat
	}
	for i, to := range [...]*int64{&p.Number, &p.Base, &p.Time} {
		*to = int64(binary.BigEndian.Uint64(v[1+8*i:]))
	}
	p.Count = int32(binary.BigEndian.Uint32(v[size-4:]))
	copy(p.Hash[:], v[size:])
	return p, nil
}

// Window is what is remembered of a producer. The zero Window is empty.
type Window struct {
	byNumber []entry // ascending
}

type entry struct {
	Published
	slot byte
}

func (w *Window) index(number int64) (at int, found bool) {
	return slices.BinarySearchFunc(w.byNumber, number, func(e entry, want int64) int {
		return cmp.Compare(e.Number, want)
	})
}

// Find returns what was published under a number.
func (w *Window) Find(number int64) (p Published, found bool) {
	at, found := w.index(number)
	if !found {
		return p, false
	}
	return w.byNumber[at].Published, true
}

// Add remembers a number that is new, in place of the lowest if there are enough. It returns
// the slot, below Remembered, that holds it from now on.
func (w *Window) Add(p Published) (slot byte, err error) {
	at, _ := w.index(p.Number)
	slot = byte(len(w.byNumber))
	if len(w.byNumber) == Remembered {
		if at == 0 {
			return 0, ErrTooOld
		}
		slot = w.byNumber[0].slot
		w.byNumber = slices.Delete(w.byNumber, 0, 1)
		at--
	}
	w.byNumber = slices.Insert(w.byNumber, at, entry{p, slot})
	return slot, nil
}

// Set replaces what is remembered of a number.
func (w *Window) Set(p Published) {
	if at, found := w.index(p.Number); found {
		w.byNumber[at].Published = p
	}
}

// Clone returns a Window that has the same numbers.
func (w *Window) Clone() *Window { return &Window{slices.Clone(w.byNumber)} }

// Last returns what was published last by time; zero if nothing was.
func (w *Window) Last() (last Published) {
	for _, e := range w.byNumber {
		if e.Time >= last.Time {
			last = e.Published
		}
	}
	return last
}

// Each calls f with what is remembered, and the slot that holds it.
func (w *Window) Each(f func(slot byte, p Published)) {
	for _, e := range w.byNumber {
		f(e.slot, e.Published)
	}
}

// All returns what is remembered, by number.
func (w *Window) All() []Published {
	all := make([]Published, len(w.byNumber))
	for i, e := range w.byNumber {
		all[i] = e.Published
	}
	return all
}

// Slots is how many slots are in use: those below.
func (w *Window) Slots() byte { return byte(len(w.byNumber)) }

// Load puts back what was stored in a slot.
func (w *Window) Load(slot byte, p Published) {
	at, _ := w.index(p.Number)
	w.byNumber = slices.Insert(w.byNumber, at, entry{p, slot})
}

// Cache keeps the windows that were used last. The zero Cache is empty.
type Cache[K comparable] struct {
	mu     sync.Mutex
	byKey  map[K]*list.Element // of *kept[K]
	recent list.List           // the last used first
}

type kept[K comparable] struct {
	key K
	*Window
}

// MaxWindows is how many windows a Cache keeps, of up to 3.5 KB each.
const MaxWindows = 4096

// Get returns a window, or nil.
func (c *Cache[K]) Get(key K) *Window {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[key]
	if e == nil {
		return nil
	}
	c.recent.MoveToFront(e)
	return e.Value.(*kept[K]).Window
}

// Put keeps a window that is not kept yet.
func (c *Cache[K]) Put(key K, w *Window) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey == nil {
		c.byKey = map[K]*list.Element{}
	}
	c.byKey[key] = c.recent.PushFront(&kept[K]{key, w})
	if c.recent.Len() > MaxWindows {
		c.remove(c.recent.Back())
	}
}

// Drop forgets a window.
func (c *Cache[K]) Drop(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byKey[key]; e != nil {
		c.remove(e)
	}
}

// DropAll forgets the windows whose keys match.
func (c *Cache[K]) DropAll(match func(K) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.byKey {
		if match(key) {
			c.remove(e)
		}
	}
}

func (c *Cache[K]) remove(e *list.Element) {
	delete(c.byKey, c.recent.Remove(e).(*kept[K]).key)
}
