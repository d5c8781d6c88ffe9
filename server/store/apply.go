package store

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Apply is the one applier of updates: it returns the item that an update makes
// of current, which may be nil. It fails, wrapping ErrInvalid, if an increment
// meets another kind or overflows.
func Apply(u Update, current Item) (Item, error) {
	// Most updates name all attributes, or only some that are there.
	next := make(Item, len(current), max(len(current), len(u.Set)+len(u.Add)))
	copy(next, current)
	for _, a := range u.Set {
		next = next.with(a)
	}
	for _, name := range u.Remove {
		if i, ok := next.find(name); ok {
			next = slices.Delete(next, i, i+1)
		}
	}
	for _, inc := range u.Add {
		old := next.Get(inc.Name)
		if old.Kind() != 0 && old.Kind() != KindInt {
			return nil, fmt.Errorf("%w: add to %s, which is not an integer", ErrInvalid, inc.Name)
		}
		n := old.Int64()
		if (inc.N > 0 && n > math.MaxInt64-inc.N) || (inc.N < 0 && n < math.MinInt64-inc.N) {
			return nil, fmt.Errorf("%w: add to %s overflows", ErrInvalid, inc.Name)
		}
		next = next.with(Attr{Name: inc.Name, Value: Int(n + inc.N)})
	}
	return next, nil
}

func (it Item) find(name string) (int, bool) {
	return slices.BinarySearchFunc(it, name, func(a Attr, name string) int { return strings.Compare(a.Name, name) })
}

// with sets an attribute in place; the receiver must not be shared.
func (it Item) with(a Attr) Item {
	i, ok := it.find(a.Name)
	if ok {
		it[i] = a
		return it
	}
	return slices.Insert(it, i, a)
}

// Next is the item that a write leaves, nil for none, given the item it finds.
func (w *Write) Next(current Item) (Item, error) {
	switch w.Op {
	case OpPut:
		return w.Item, nil
	case OpUpdate:
		next, err := Apply(w.Update, current)
		if err == nil && itemSize(w.Key, next) > MaxItemBytes {
			return nil, fmt.Errorf("%w: %s would have more than %d bytes", ErrInvalid, w.Key, MaxItemBytes)
		}
		return next, err
	case OpDelete:
		return nil, nil
	default:
		return current, nil
	}
}
