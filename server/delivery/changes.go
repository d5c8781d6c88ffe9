package delivery

import (
	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/event"
)

// maxWaiting bounds the changes that wait for earlier ones: further changes are read from
// the store.
const maxWaiting = 64

// changeLog is what the hub has loaded of one chat's changes: those that wait for earlier ones, and the last ones,
// for streams that catch up. It bounds their memory. The zero value is empty and has no position. Its owner guards it.
type changeLog struct {
	Started bool  // Version is set; until then changes are only collected
	Version int64 // every change up to here was applied
	Newest  int64 // newest version that exists, as far as is known

	waiting map[int64]*frame.Change // newer than Version
	recent  []*frame.Change         // the last changes applied, oldest first
}

// Receive adds a change that was delivered, unless it does not fit. It returns false
// if the change was applied already.
func (l *changeLog) Receive(e event.Event) (isNew bool) {
	v := e.GetMetadata().GetVersion()
	if l.Started && v <= l.Version {
		return false
	}
	if len(l.waiting) < maxWaiting || (l.Started && v == l.Version+1) {
		l.put(v, e)
	}
	l.Newest = max(l.Newest, v)
	return true
}

// Fill adds a change that was read, regardless of the bound. It counts for Newest: a chat
// with changes to apply must not be dropped.
func (l *changeLog) Fill(e event.Event) {
	if v := e.GetMetadata().GetVersion(); v > l.Version && l.waiting[v] == nil {
		l.put(v, e)
		l.Newest = max(l.Newest, v)
	}
}

func (l *changeLog) put(v int64, e event.Event) {
	if l.waiting == nil {
		l.waiting = map[int64]*frame.Change{}
	}
	if l.waiting[v] == nil {
		l.waiting[v] = frame.NewChange(e)
	}
}

// Start sets the first version that counts as applied.
func (l *changeLog) Start(version int64) {
	l.Started, l.Version = true, version
	for v := range l.waiting {
		if v <= version {
			delete(l.waiting, v)
		}
	}
	l.Newest = max(l.Newest, version)
}

// Next returns the change that follows, which counts as applied then, nil if it is
// missing. The last ones are kept, at most so many.
func (l *changeLog) Next(keep int) *frame.Change {
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
func (l *changeLog) Complete() {
	l.Newest = l.Version
	for v := range l.waiting {
		l.Newest = max(l.Newest, v)
	}
}

// Since returns the changes applied after a version; false if they are not all kept.
func (l *changeLog) Since(version int64) ([]*frame.Change, bool) {
	if len(l.recent) == 0 || l.recent[0].Version > version+1 {
		return nil, false
	}
	return l.recent[min(version+1-l.recent[0].Version, int64(len(l.recent))):], true
}
