// Package figure is what a measurement comes to: histograms of fixed size, named figures of
// rounds and their medians, a report as JSON, and two reports compared.
//
// It owns the form of a report, which later versions of the program read. Concurrency: a
// Histogram is safe for concurrent use; one goroutine uses everything else.
package figure

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// A histogram has subBuckets buckets for each power of two, so that a value is known to
// within 1.6 %, up to 2^maxBits ns, which is 18 minutes.
const (
	subBits    = 6
	subBuckets = 1 << subBits
	maxBits    = 40
)

// Histogram counts durations.
type Histogram struct {
	counts [(maxBits - subBits + 1) * subBuckets]atomic.Uint64
	max    atomic.Int64
}

// Add counts a duration; a negative one counts as none.
func (h *Histogram) Add(d time.Duration) {
	d = min(max(d, 0), 1<<maxBits-1)
	h.counts[bucket(uint64(d))].Add(1)
	for {
		old := h.max.Load()
		if int64(d) <= old || h.max.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

// Join adds what another histogram has counted.
func (h *Histogram) Join(o *Histogram) {
	for i := range o.counts {
		h.counts[i].Add(o.counts[i].Load())
	}
	for o := o.max.Load(); ; {
		if old := h.max.Load(); o <= old || h.max.CompareAndSwap(old, o) {
			return
		}
	}
}

// bucket is where a value is counted: one bucket for each value below subBuckets, above it
// by its highest bits.
func bucket(v uint64) int {
	shift := max(0, bits.Len64(v)-subBits-1)
	return shift<<subBits + int(v>>shift)
}

// upper is the largest value of a bucket.
func upper(i int) time.Duration {
	if i < 2*subBuckets {
		return time.Duration(i)
	}
	shift := i>>subBits - 1
	return time.Duration((i-shift<<subBits+1)<<shift - 1)
}

// Count is how many durations were counted.
func (h *Histogram) Count() (n uint64) {
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
}

// Max is the longest duration.
func (h *Histogram) Max() time.Duration { return time.Duration(h.max.Load()) }

// Quantile is a duration that a share of all, from 0 to 1, do not exceed; 0 without any.
func (h *Histogram) Quantile(share float64) time.Duration {
	n := h.Count()
	if n == 0 {
		return 0
	}
	rank, seen := uint64(share*float64(n-1))+1, uint64(0)
	for i := range h.counts {
		if seen += h.counts[i].Load(); seen >= rank {
			return min(upper(i), h.Max())
		}
	}
	return h.Max()
}
