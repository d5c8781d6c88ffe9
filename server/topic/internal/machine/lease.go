package machine

import (
	"slices"
	"sort"
)

// lease is a run of positions that an owner has.
type lease[O comparable] struct {
	From, To int64
	Deadline int64 // unix ns
	Size     int64 // bytes of the messages
	Order    int64 // of the first of them among what the owner got, in all partitions
	Owner    O
}

// leaseTable holds leases by position, which do not overlap. They are added behind and taken
// away in front, mostly. Neighbours of one owner that end together are one, if they were delivered in
// their order.
type leaseTable[O comparable] struct {
	list []lease[O]
	head int // of list, from which on they are
}

// All returns the leases. The slice is the table's; deadlines may be written to.
func (l *leaseTable[O]) All() []lease[O] { return l.list[l.head:] }

// Find returns the index in All of the first lease that ends after p.
func (l *leaseTable[O]) Find(p int64) int {
	all := l.All()
	if n := len(all); n == 0 || all[0].To > p {
		return 0
	} else if all[n-1].To <= p {
		return n
	}
	return sort.Search(len(all), func(i int) bool { return all[i].To > p })
}

// Has reports whether a lease covers a position.
func (l *leaseTable[O]) Has(p int64) bool {
	i := l.Find(p)
	return i < len(l.All()) && l.All()[i].From <= p
}

// Insert adds a lease of positions that no lease covers.
func (l *leaseTable[O]) Insert(n lease[O]) {
	i := l.Find(n.From)
	all := l.All()
	if i > 0 && all[i-1].To == n.From && all[i-1].Owner == n.Owner && all[i-1].Deadline == n.Deadline &&
		all[i-1].Order <= n.Order {
		all[i-1].To = n.To
		all[i-1].Size += n.Size
		return
	}
	if i < len(all) {
		l.list = slices.Insert(l.list, l.head+i, n)
		return
	}
	if len(l.list) == cap(l.list) && l.head > len(l.list)/2 {
		l.list = l.list[:copy(l.list, all)]
		l.head = 0
	}
	l.list = append(l.list, n)
}

// Cut takes the positions from from to to out of lease i, whose they are, and returns
// their size, an estimate if others of the lease are left.
func (l *leaseTable[O]) Cut(i int, from, to int64) int64 {
	at := l.head + i
	e := &l.list[at]
	if from == e.From && to == e.To {
		size := e.Size
		if i == 0 {
			*e = lease[O]{}
			if l.head++; l.head == len(l.list) {
				l.list, l.head = l.list[:0], 0
			}
		} else {
			l.list = slices.Delete(l.list, at, at+1)
		}
		return size
	}
	size := e.Size / (e.To - e.From) * (to - from)
	e.Size -= size
	switch {
	case from == e.From:
		e.From = to
	case to == e.To:
		e.To = from
	default:
		right := *e
		right.Size = e.Size / (e.To - e.From - (to - from)) * (e.To - to)
		right.From = to
		e.To = from
		e.Size -= right.Size
		l.list = slices.Insert(l.list, at+1, right)
	}
	return size
}

// Take removes the leases that match and appends them to dst.
func (l *leaseTable[O]) Take(dst []lease[O], match func(*lease[O]) bool) []lease[O] {
	all := l.All()
	kept := 0
	for i := range all {
		if match(&all[i]) {
			dst = append(dst, all[i])
		} else {
			all[kept] = all[i]
			kept++
		}
	}
	clear(all[kept:])
	if l.list = l.list[:l.head+kept]; kept == 0 {
		l.list, l.head = l.list[:0], 0
	}
	return dst
}
