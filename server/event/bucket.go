package event

import "strings"

// Buckets is the number of virtual buckets; it never changes, because the
// partition of each key follows from it.
const Buckets = 4096

// Shards is the number of outbox shards of chats. It divides Buckets, and the partitions
// of messages.persisted are as many, so that a shard feeds one partition.
const Shards = 64

// Bucket is the virtual bucket of a key: Kafka's murmur2 of its UTF-8 bytes,
// without the sign, modulo Buckets.
func Bucket(key string) int { return int(Murmur2(key)&0x7fffffff) % Buckets }

// Partition is the partition of a key among n.
func Partition(key string, n int) int { return Bucket(key) % n }

// SearchShards is the number of outbox shards of search events, behind those of chats: a
// relay of their own publishes them, so that no event of a chat waits for them.
const SearchShards = 8

// AllShards is the number of all outbox shards.
const AllShards = Shards + SearchShards

// SearchStream begins the ids of streams of search events, and no id of a chat.
const SearchStream = "srch_"

// IsSearchStream reports whether a stream is one of search events.
func IsSearchStream(id string) bool { return strings.HasPrefix(id, SearchStream) }

// Shard is the outbox shard of a stream: of a chat, or of a stream of search events.
func Shard(id string) int {
	if IsSearchStream(id) {
		return Shards + Bucket(id)%SearchShards
	}
	return Bucket(id) % Shards
}

// Murmur2 is the hash of Kafka's default partitioner: Austin Appleby's
// MurmurHash2 with Kafka's seed.
func Murmur2(s string) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(s))
	for ; len(s) >= 4; s = s[4:] {
		k := uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
	}
	switch len(s) {
	case 3:
		h ^= uint32(s[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(s[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(s[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
