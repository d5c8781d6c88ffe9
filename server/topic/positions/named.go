package positions

import "math/bits"

// Named calls f with the runs of positions that are named as count of them from base on, 1
// if it is 0, or as those of them whose bit is set in a bitmap, if it is not empty: bit 0 of
// byte 0 is base. No more than limit are.
func Named(base, count int64, bitmap []byte, limit int64, f func(from, to int64)) {
	if len(bitmap) == 0 {
		f(base, base+min(max(count, 1), limit))
		return
	}
	from := int64(-1)
	limit = min(int64(len(bitmap))*8, limit)
	if count > 0 {
		limit = min(limit, count)
	}
	for i := int64(0); i < limit; {
		b := bitmap[i/8] >> (i % 8)
		if b == 0 { // the rest of the byte
			if from >= 0 {
				f(base+from, base+i)
				from = -1
			}
			i += 8 - i%8
			continue
		}
		if zeros := int64(bits.TrailingZeros8(b)); zeros > 0 {
			if from >= 0 {
				f(base+from, base+i)
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
		f(base+from, base+limit)
	}
}
