package embedded

import (
	"sync"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/itemcache"
)

// Heads of chats and members' own rows are read and changed with each message. A stripe
// keeps the last few of them decoded, so that a plan need not look them up.
//
// The cache is never ahead of Pebble nor behind it: under the stripe's lock, an item is
// hidden before a batch that changes it becomes visible, and cached afterwards. A plan
// whose batch fails leaves nothing in the cache. An item that is found here was visible
// before, so that a reader waits for it as for anything else that it read. All stripes
// together keep 16,384 items of at most 1 KiB.

// hot says, by the number of a table, whether its items are cached.
var hot = func() (hot [256]bool) {
	hot[tableNumbers[store.ChatCounters]] = true
	hot[tableNumbers[store.DeliveryState]] = true
	return hot
}()

func isHot(key []byte) bool { return hot[key[1]] }

// stripe guards the items of some keys against concurrent changes, and caches a few of them.
type stripe struct {
	sync.Mutex
	recent itemcache.Set
}

// cached returns the item of a key if it is cached and no plan is changing it.
func (s *Store) cached(key []byte) (store.Item, bool) {
	if !isHot(key) || s.uncached.Load() {
		return nil, false
	}
	st := &s.stripes[s.stripeOf(key)]
	if !st.TryLock() { // a plan may hold the lock for as long as Pebble makes it wait
		return nil, false
	}
	defer st.Unlock()
	return st.recent.Get(key)
}
