package machine

import "slices"

// keyTable holds the keys of which a message is under way. The empty key is none: it is
// never held. The zero value is not usable, see newKeyTable.
type keyTable struct {
	holds map[string]*keyHold
	keys  map[int64]string // of the messages that hold one
}

type keyHold struct {
	key     string
	holder  int64   // position
	waiting []int64 // positions, in order
}

// noHolder holds a key whose message is to be delivered again.
const noHolder = -1

// newKeyTable returns an empty table.
func newKeyTable() *keyTable { return &keyTable{map[string]*keyHold{}, map[int64]string{}} }

// Len returns the number of keys.
func (t *keyTable) Len() int { return len(t.holds) }

// Blocked reports whether a message has to wait for another one of its key.
func (t *keyTable) Blocked(key string, position int64) bool {
	h := t.holds[key]
	if h == nil || h.holder == position {
		return false
	}
	return h.holder != noHolder || position > h.waiting[0]
}

// Wait records that a message that is blocked waits.
func (t *keyTable) Wait(key string, position int64) {
	h := t.holds[key]
	i, _ := slices.BinarySearch(h.waiting, position)
	h.waiting = slices.Insert(h.waiting, i, position)
}

// Hold makes a message that is not blocked hold up the later ones of its key.
func (t *keyTable) Hold(key string, position int64) {
	if key == "" {
		return
	}
	h := t.holds[key]
	if h == nil {
		h = &keyHold{key: key}
		t.holds[key] = h
	}
	h.holder = position
	t.keys[position] = key
}

// Return says that a message that may hold its key is to be delivered again: later ones keep waiting for it. It
// returns an earlier one that waits, if there is one, as that was not due when the key was free: it comes first.
func (t *keyTable) Return(position int64, done func(position int64) bool) (next int64, ok bool) {
	h := t.release(position)
	for h != nil && len(h.waiting) > 0 && h.waiting[0] < position && !ok {
		next = t.first(h)
		ok = !done(next)
	}
	return next, ok
}

// release takes a message off its key. It returns the key's entry; nil if no message waits for the key.
func (t *keyTable) release(position int64) *keyHold {
	key, ok := t.keys[position]
	if !ok {
		return nil
	}
	delete(t.keys, position)
	h := t.holds[key]
	if h.holder = noHolder; len(h.waiting) == 0 {
		delete(t.holds, key)
		return nil
	}
	return h
}

// first takes out what has waited longest. The key is its to hold.
func (t *keyTable) first(h *keyHold) (position int64) {
	position, h.waiting = h.waiting[0], h.waiting[1:]
	if len(h.waiting) == 0 {
		delete(t.holds, h.key)
	}
	return position
}

// Free says that a message that may hold its key is done with, and returns the one that
// has waited longest for it, if there is one: the key is its to hold. done says which of those
// that wait are done with, too, as a dead letter that was stored meanwhile.
func (t *keyTable) Free(position int64, done func(position int64) bool) (next int64, ok bool) {
	h := t.release(position)
	for h != nil && len(h.waiting) > 0 && !ok {
		next = t.first(h)
		ok = !done(next)
	}
	return next, ok
}

// FreeAll is Free that returns all that wait. None of them holds the key then.
func (t *keyTable) FreeAll(position int64) []int64 {
	h := t.release(position)
	if h == nil {
		return nil
	}
	delete(t.holds, h.key)
	return h.waiting
}

// Waiting returns how many messages wait for a key.
func (t *keyTable) Waiting(key string) int {
	if h := t.holds[key]; h != nil {
		return len(h.waiting)
	}
	return 0
}

// Blocks reports whether messages wait for a key whose holder is one of those that by reports.
func (t *keyTable) Blocks(by func(position int64) bool) bool {
	for _, h := range t.holds {
		if len(h.waiting) > 0 && h.holder != noHolder && by(h.holder) {
			return true
		}
	}
	return false
}

// Reset forgets those that wait, and the holders that keep does not want.
func (t *keyTable) Reset(keep func(position int64) bool) {
	for position, key := range t.keys {
		if !keep(position) {
			delete(t.keys, position)
			delete(t.holds, key)
		}
	}
	for key, h := range t.holds {
		if h.waiting = nil; h.holder == noHolder {
			delete(t.holds, key)
		}
	}
}
