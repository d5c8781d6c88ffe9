// Package descriptors knows how many files and connections the process may have open, and
// divides them among the packages that open them: without a free descriptor a store cannot
// write.
//
// Concurrency: its functions may be called by many goroutines.
package descriptors

// Bounds of what a store takes.
const (
	storeShare = 6 // one of this many parts
	minStore   = 64
	maxStore   = 1_000
)

// Store is how many files a store may keep open for reading.
func Store() int {
	limit, _, ok := Count()
	if !ok {
		return maxStore
	}
	return storeOf(limit)
}

func storeOf(limit int) int { return max(minStore, min(maxStore, limit/storeShare)) }

// Bounds of what others take.
const (
	minClients = 16  // connections that there always are for clients
	otherShare = 8   // one of this many parts is for other ports, and what is open for a moment
	maxOther   = 192 // but not more
)

// Clients is how many of the wanted connections of clients there may be: the rest is for
// the store, readers of the Kafka port, other ports, and what is open already.
func Clients(wanted, readers int) int {
	limit, used, ok := Count()
	if !ok {
		return wanted
	}
	return clientsOf(wanted, readers, limit, used)
}

func clientsOf(wanted, readers, limit, used int) int {
	return min(wanted, max(minClients, limit-used-readers-storeOf(limit)-min(maxOther, limit/otherShare)))
}
