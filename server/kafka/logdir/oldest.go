package logdir

import "slices"

// Total is how large segments are together, in bytes.
func Total(list []Segment) (n int64) {
	for _, s := range list {
		n += s.Bytes
	}
	return n
}

// Oldest chooses what goes of some segments, if they are larger than limit, until they are
// not larger than target (bytes), and returns how large they are then. Only what is read
// goes, as far as read reports for all below an offset, and of each partition the last
// segment stays. In cut it notes the first segment that stays of each partition that
// loses one.
func Oldest(
	list []Segment, limit, target int64, read func(p Partition, offset int64) bool, cut map[Partition]Segment,
) int64 {
	left := Total(list)
	if left <= limit {
		return left
	}
	slices.SortStableFunc(list, func(a, b Segment) int { return a.At.Compare(b.At) })
	follow := map[Partition][]Segment{}
	for _, s := range list {
		follow[s.Partition] = append(follow[s.Partition], s)
	}
	for p, own := range follow {
		slices.SortFunc(own, func(a, b Segment) int { return int(a.Base - b.Base) })
		follow[p] = own
	}
	for _, s := range list {
		own := follow[s.Partition]
		// The segments of a partition go in order.
		if left <= target || len(own) < 2 || own[0].Base != s.Base || !read(s.Partition, own[1].Base) {
			continue
		}
		left -= s.Bytes
		follow[s.Partition], cut[s.Partition] = own[1:], own[1]
	}
	return left
}
