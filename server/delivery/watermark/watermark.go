// Package watermark remembers how far messages have reached the devices of users, so
// that it is written seldom.
//
// It owns which watermark is to be written next; it does not own when, nor the
// writing. A Set is guarded by its owner.
package watermark

// Key is a user in a chat.
type Key struct{ User, Chat string }

type progress struct{ sequence, written int64 }

// Set holds the watermarks that were written lately or are to be.
type Set map[Key]*progress

// Raise records that a sequence was reached. It reports whether the key is new: its
// owner then has to call Next for it.
func (s Set) Raise(k Key, sequence int64) (isNew bool) {
	m := s[k]
	if m == nil {
		m = &progress{}
		s[k], isNew = m, true
	}
	m.sequence = max(m.sequence, sequence)
	return isNew
}

// Next returns the sequence to write. Without any, ok is false and the key is
// dropped.
func (s Set) Next(k Key) (sequence int64, ok bool) {
	m := s[k]
	if m == nil || m.sequence <= m.written {
		delete(s, k)
		return 0, false
	}
	return m.sequence, true
}

// Written records that a sequence returned by Next was written.
func (s Set) Written(k Key, sequence int64) {
	if m := s[k]; m != nil {
		m.written = max(m.written, sequence)
	}
}
