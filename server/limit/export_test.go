package limit

// Keys is the number of keys in memory.
func (l *Limiter) Keys() (n int) {
	for i := range l.local.shards {
		n += len(l.local.shards[i].open) + len(l.local.shards[i].closed)
	}
	return n
}
