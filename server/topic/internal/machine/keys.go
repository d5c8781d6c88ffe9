package machine

import "slices"

// waits reports whether a message has to wait for another one of its key; then it does.
func (d *delivery) waits(key string, position int64) bool {
	if !d.keys.Blocked(key, position) {
		return false
	}
	d.keys.Wait(key, position)
	d.take(position, position+1)
	return true
}

// Parked appends what is parked, by position, as far as Next has come.
func (g *GroupState) Parked(dst []Parked) []Parked { return g.fails.Parked(dst, g.keys.Waiting) }

// Unpark delivers messages of keys again that are parked, or would be, of all without
// keys, with their attempts counted from the beginning: those from a position on. It returns
// how many, and the first one whose key a restart has forgotten and whose batch is not in
// memory, -1 if there is none: once that is, the call is repeated from there on.
func (g *GroupState) Unpark(from int64, keys ...string) (n int, missing int64) {
	missing = -1
	for position := range g.fails.All() {
		if position < from || !g.stopped(position) {
			continue
		}
		key, known := g.keyOf(position)
		if len(keys) == 0 || known && slices.Contains(keys, key) {
			g.fails.Remove(position)
			n++
		} else if !known && (missing < 0 || position < missing) {
			missing = position
		}
	}
	if n > 0 {
		g.version++
		g.rebuild()
	}
	return n, missing
}

// keyOf returns the key of a message that failed, if Next has come to it or its batch is in
// memory. One that is no longer there has none.
func (g *GroupState) keyOf(position int64) (key string, known bool) {
	if key, known = g.fails.Key(position); known {
		return key, true
	}
	batch, residence := g.p.source.At(position)
	if residence == Resident && batch.Base <= position {
		key = batch.Key(int(position - batch.Base))
	}
	return key, residence != Missing
}

// Stopped appends the positions that are parked or would be if Next came to them, in
// ascending order.
func (g *GroupState) Stopped(dst []Parked) []Parked {
	if g.config.Exhausted != ParkKey {
		return dst
	}
	return g.fails.Stopped(dst, g.config.MaxAttempts)
}

func (g *GroupState) stopped(position int64) bool {
	return g.config.Exhausted == ParkKey && g.fails.Get(position).Attempts >= g.config.MaxAttempts
}

// UnparkAt delivers a parked message again, with its attempts counted from the beginning.
// It returns false if the message is not parked.
func (g *GroupState) UnparkAt(position int64) bool {
	if !g.stopped(position) {
		return false
	}
	g.fails.Remove(position)
	g.version++
	g.rebuild()
	return true
}

// DiscardAt acknowledges a parked message, so that the messages that wait behind it proceed.
// It returns false if the message is not parked.
func (g *GroupState) DiscardAt(position int64) bool {
	if !g.stopped(position) {
		return false
	}
	g.done(position, position+1)
	g.rebuild()
	return true
}
