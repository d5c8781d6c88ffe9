// Package eventtest holds what tests of several packages need to know of events: the
// vectors of partitioning, by which every package that publishes is held to the
// contract. They were computed with Python and Go, equal, and compared
// with Kafka's own function.
//
// Concurrency: the functions return values of the caller's own.
package eventtest

import "strings"

// Vector is a key and where it belongs.
type Vector struct {
	Key    string
	Hash   uint32 // Kafka's murmur2 of its UTF-8 bytes
	Bucket int
	// Partitions is the partition by the number of partitions: 128, 64, 16 and 8.
	Partitions map[int]int
}

// Vectors returns the vectors. The first is the empty key, which nothing is published
// under.
func Vectors() []Vector {
	v := func(key string, hash uint32, bucket, p128, p64, p16, p8 int) Vector {
		return Vector{key, hash, bucket, map[int]int{128: p128, 64: p64, 16: p16, 8: p8}}
	}
	return []Vector{
		v("", 0x106e08d9, 2265, 89, 25, 9, 1),
		v("chat_abc123", 0x5333e856, 2134, 86, 22, 6, 6),
		v("chat_xyz789", 0xa2a1a1ea, 490, 106, 42, 10, 2),
		v("chat_000001", 0x1b4ae8ed, 2285, 109, 45, 13, 5),
		v("chat_\u6d4b\u8bd5", 0x8eb3561f, 1567, 31, 31, 15, 7),
		v("a", 0xa2d0b27c, 636, 124, 60, 12, 4),
		v("chat_"+strings.Repeat("x", 1000), 0xeba4f520, 1312, 32, 32, 0, 0),
		v("chat_\U0001F389\U0001F38A", 0x6f8d412d, 301, 45, 45, 13, 5),
	}
}
