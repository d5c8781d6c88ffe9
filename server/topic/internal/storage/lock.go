package storage

import "sync"

// Change is a change of a topic in progress.
type Change struct{ lock *sync.RWMutex }

// Read is a time in which a topic does not change.
type Read struct{ lock *sync.RWMutex }

// Changing begins a change of a topic. Until its End no message of the topic gets a position, no
// member attaches, and there is no other change. A change may wait for the store. Use it as
//
//	defer t.Changing().End()
//
// It is the first lock that is taken, of a topic before that of its dead letters.
func (t *Topic) Changing() Change {
	t.lock.Lock()
	return Change{&t.lock}
}

// Reading keeps a topic's subscriptions and settings as they are until End: the subscriptions
// and settings that a publish finds are valid when its messages get their positions. Others may
// read meanwhile.
func (t *Topic) Reading() Read {
	t.lock.RLock()
	return Read{&t.lock}
}

// End ends the change.
func (c Change) End() { c.lock.Unlock() }

// End lets the topic change.
func (r Read) End() { r.lock.RUnlock() }
