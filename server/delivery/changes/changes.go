// Package changes holds what a hub knows of the changes of one chat: which of them were
// walked, which wait for earlier ones, and the last ones, for streams that open.
//
// It owns their order and the bounds of memory; it does not own who is shown a change
// (package delivery). A Log is guarded by its owner.
package changes

import (
	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/event"
)

// maxWaiting bounds the changes that wait for earlier ones: what does not fit is read
// from the store.
const maxWaiting = 64

// Log is what is known of a chat's changes. The zero value knows nothing.
type Log struct {
	Known   bool  // Version is set; until then changes are only collected
	Version int64 // every change up to here was walked
	Wanted  int64 // newest version that is known to exist

	waiting map[int64]*frame.Change // newer than Version
	recent  []*frame.Change         // the last changes walked, oldest first
}

// Receive takes in a change that was delivered, unless it does not fit. It returns false
// if the change was walked already.
func (l *Log) Receive(e event.Event) (fresh bool) {
	v := e.GetMetadata().GetVersion()
	if l.Known && v <= l.Version {
		return false
	}
	if len(l.waiting) < maxWaiting || (l.Known && v == l.Version+1) {
		l.put(v, e)
	}
	l.Wanted = max(l.Wanted, v)
	return true
}

// Take takes in a change that was read, whatever the bound. It counts as wanted: a chat
// with changes to walk must not be forgotten.
func (l *Log) Take(e event.Event) {
	if v := e.GetMetadata().GetVersion(); v > l.Version && l.waiting[v] == nil {
		l.put(v, e)
		l.Wanted = max(l.Wanted, v)
	}
}

func (l *Log) put(v int64, e event.Event) {
	if l.waiting == nil {
		l.waiting = map[int64]*frame.Change{}
	}
	if l.waiting[v] == nil {
		l.waiting[v] = frame.NewChange(e)
	}
}

// Begin sets the first version that counts as walked.
func (l *Log) Begin(version int64) {
	l.Known, l.Version = true, version
	for v := range l.waiting {
		if v <= version {
			delete(l.waiting, v)
		}
	}
	l.Wanted = max(l.Wanted, version)
}

// Next returns the change that follows, which counts as walked then, nil if it is
// missing. The last ones are kept, at most so many.
func (l *Log) Next(keep int) *frame.Change {
	c := l.waiting[l.Version+1]
	if c == nil {
		return nil
	}
	delete(l.waiting, c.Version)
	l.Version = c.Version
	if len(l.recent) == keep {
		copy(l.recent, l.recent[1:])
		l.recent[keep-1] = c
		return c
	}
	l.recent = append(l.recent, c)
	return c
}

// Complete says that there is nothing newer than what is here.
func (l *Log) Complete() {
	l.Wanted = l.Version
	for v := range l.waiting {
		l.Wanted = max(l.Wanted, v)
	}
}

// Since returns the changes walked after a version; false if they are not all kept.
func (l *Log) Since(version int64) ([]*frame.Change, bool) {
	if len(l.recent) == 0 || l.recent[0].Version > version+1 {
		return nil, false
	}
	return l.recent[min(version+1-l.recent[0].Version, int64(len(l.recent))):], true
}
