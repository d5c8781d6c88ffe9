// Package javahash hashes text as Java's String.hashCode does, which members of groups are
// chosen by.
package javahash

// Of hashes the UTF-16 form of s.
func Of(s string) int32 {
	var h int32
	for _, r := range s {
		if r >= 0x10000 {
			r -= 0x10000
			h = 31*h + 0xd800 + r>>10
			r = 0xdc00 + r&0x3ff
		}
		h = 31*h + r
	}
	return h
}
