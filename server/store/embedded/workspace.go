package embedded

import (
	"slices"
	"sync"

	"github.com/parley-chat/parley/server/store"
)

// workspace is what a plan needs while it is applied. It is used again, because most plans
// are alike. It belongs to one goroutine.
type workspace struct {
	items []writtenItem // one for each write
	keys  []byte        // the memory of the items' keys
	locks []int         // the items' stripes, ascending
	value []byte        // of the last item that was encoded
}

// writtenItem is the item of a write.
type writtenItem struct {
	key     []byte // encoded
	stripe  int
	found   store.Item // as stored, expired or not, if the write needs it
	ttl     bool       // the table's items may expire
	written bool       // by this plan
	next    store.Item // what it leaves, nil for none
	updated bool       // next was made for this plan, from found
	texts   bool       // ... and has texts from the plan
}

func (it *writtenItem) live(now int64) store.Item {
	if it.ttl && store.Expired(it.found, now) {
		return nil
	}
	return it.found
}

var workspaces = sync.Pool{New: func() any { return &workspace{} }}

// maxKept is the size of buffers, in bytes, up to which a workspace keeps them.
const maxKept = 64 << 10

func newWorkspace(writes []store.Write) *workspace {
	w, _ := workspaces.Get().(*workspace)
	size := 0
	for i := range writes {
		size += 3 + len(writes[i].Key.PK) + len(writes[i].Key.SK)
	}
	w.keys = slices.Grow(w.keys, size) // so that it does not move
	for i := range writes {
		start := len(w.keys)
		w.keys = appendKey(w.keys, writes[i].Key)
		w.items = append(w.items, writtenItem{key: w.keys[start:len(w.keys):len(w.keys)]})
	}
	return w
}

// ofKeys is a workspace for items whose encoded keys are known.
func ofKeys(keys [][]byte) *workspace {
	w, _ := workspaces.Get().(*workspace)
	for _, k := range keys {
		w.items = append(w.items, writtenItem{key: k})
	}
	return w
}

// release makes the workspace free for another plan.
func (w *workspace) release() {
	clear(w.items) // it keeps no items in memory
	w.items, w.keys, w.locks, w.value = w.items[:0], w.keys[:0], w.locks[:0], w.value[:0]
	if cap(w.keys)+cap(w.value) <= maxKept {
		workspaces.Put(w)
	}
}

// hide makes what the plan changes count no more in the cache.
func (w *workspace) hide(s *Store) {
	for i := range w.items {
		if it := &w.items[i]; it.written && isHot(it.key) && !s.opts.stale {
			s.stripes[it.stripe].recent.Hide(it.key)
		}
	}
}

// cache takes what the plan left into the cache.
func (w *workspace) cache(s *Store) {
	for i := range w.items {
		it := &w.items[i]
		if it.next == nil || !isHot(it.key) {
			continue
		}
		recent := &s.stripes[it.stripe].recent
		if _, known := recent.Get(it.key); known && s.opts.stale {
			continue
		}
		if it.updated {
			recent.Take(it.key, it.next, it.texts)
		} else {
			recent.Put(it.key, it.next)
		}
	}
}
