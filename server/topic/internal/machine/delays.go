package machine

// delay is a message that waits.
type delay struct{ due, position int64 }

// delays is a heap.
type delays []delay

func (d delays) Len() int           { return len(d) }
func (d delays) Less(i, j int) bool { return d[i].due < d[j].due }
func (d delays) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push is for package heap.
func (d *delays) Push(x any) { *d = append(*d, x.(delay)) }

// Pop is for package heap.
func (d *delays) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
