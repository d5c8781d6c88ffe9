// Package bounded keeps caches within their bounds. A cache is a map from which any entry may be
// removed at the cost of loading it again.
//
// It owns which entries make room for a new one. It does not own bounds, entries or locks: its
// functions are called under the lock of the map.
package bounded

// share is the part of a full cache that makes room at a time. Removing entries one by one would
// start a range over the map for each new entry; removing all of them would make every reader load
// its entry again at the same time.
const share = 16

// Put sets m[k] to v in a cache of at most bound entries, which is at least 1. If k is new and the
// cache is full, Put first removes a sixteenth of the entries, at least one: those that a range over
// the map visits first, whether they are in use or not.
func Put[M ~map[K]V, K comparable, V any](m M, k K, v V, bound int) {
	if _, known := m[k]; !known && len(m) >= bound {
		room := len(m) - bound + max(1, bound/share)
		for old := range m {
			delete(m, old)
			if room--; room == 0 {
				break
			}
		}
	}
	m[k] = v
}
