package machine

import "math/bits"

// Positions names positions: Count of them from Base on, or those of them whose bit is set in
// Bitmap, if it is not empty; bit 0 of byte 0 is Base.
type Positions struct {
	Base, Count int64
	Bitmap      []byte
}

// Runs calls f with the runs of the positions, as far as they are below Base and limit.
func (s Positions) Runs(limit int64, f func(from, to int64)) {
	if len(s.Bitmap) == 0 {
		f(s.Base, s.Base+min(max(s.Count, 1), limit))
		return
	}
	from := int64(-1)
	limit = min(int64(len(s.Bitmap))*8, limit)
	if s.Count > 0 {
		limit = min(limit, s.Count)
	}
	for i := int64(0); i < limit; {
		b := s.Bitmap[i/8] >> (i % 8)
		if b == 0 { // the rest of the byte
			if from >= 0 {
				f(s.Base+from, s.Base+i)
				from = -1
			}
			i += 8 - i%8
			continue
		}
		if zeros := int64(bits.TrailingZeros8(b)); zeros > 0 {
			if from >= 0 {
				f(s.Base+from, s.Base+i)
				from = -1
			}
			i += zeros
			continue
		}
		if from < 0 {
			from = i
		}
		i += min(int64(bits.TrailingZeros8(^b)), limit-i)
	}
	if from >= 0 {
		f(s.Base+from, s.Base+limit)
	}
}
