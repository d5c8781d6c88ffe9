package topic

import (
	"slices"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// Bounds of Positions on the wire.
const (
	maxSpan = 65536
	runCost = 12 // bytes of a Positions without a bitmap, about
)

// span is positions [from, to).
type span struct{ from, to int64 }

// groupPositions writes positions of a partition, in any order, as few Positions: a run as base and
// count, runs that are near each other as a bitmap.
func groupPositions(partition int32, positions []int64) (out []*topicv1.Positions) {
	runs := runsOf(positions)
	for len(runs) > 0 {
		n := 1
		for n < len(runs) && runs[n].to-runs[0].from <= min(maxSpan, int64(n+1)*runCost*8) {
			n++
		}
		p := &topicv1.Positions{Partition: partition, Base: runs[0].from, Count: runs[n-1].to - runs[0].from}
		if n > 1 {
			p.Bitmap = bitmap(runs[:n])
		}
		out = append(out, p)
		runs = runs[n:]
	}
	return out
}

// runsOf joins neighbours, up to what a Positions can hold.
func runsOf(positions []int64) (runs []span) {
	for _, p := range slices.Compact(slices.Sorted(slices.Values(positions))) {
		if n := len(runs); n > 0 && runs[n-1].to == p && p-runs[n-1].from < maxSpan {
			runs[n-1].to++
			continue
		}
		runs = append(runs, span{p, p + 1})
	}
	return runs
}

func bitmap(runs []span) []byte {
	base := runs[0].from
	bits := make([]byte, (runs[len(runs)-1].to-base+7)/8)
	for _, r := range runs {
		for i := r.from - base; i < r.to-base; i++ {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return bits
}

// eachPosition calls f for every position that p names.
func eachPosition(p *topicv1.Positions, f func(position int64)) {
	for i := range max(p.GetCount(), 1, int64(len(p.GetBitmap()))*8) {
		if bits := p.GetBitmap(); len(bits) > 0 && (i/8 >= int64(len(bits)) || bits[i/8]&(1<<(i%8)) == 0) {
			continue
		}
		f(p.GetBase() + i)
	}
}
