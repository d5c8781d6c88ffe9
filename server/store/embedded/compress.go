package embedded

import (
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// lowestBlock is the size of a block of the lowest level in bytes, before compression: two
// of them hold a page of 50 messages. The levels above have Pebble's 4 KB.
const lowestBlock = 16 << 10

// lowest compresses the blocks of the lowest level, which has most of the data, and in
// which it stays. Levels above have Snappy. Each block says how it is compressed, so that
// stores may change between programs that choose differently.
func lowest() *sstable.CompressionProfile {
	if nativeZstd {
		p := *sstable.BalancedCompression
		p.AdaptiveReductionCutoffPercent = 0 // else it compresses some blocks twice, to compare
		return &p
	}
	// Without the C library Pebble makes a decoder of Zstandard for each block that it
	// reads, which takes longer than all else about a page of messages.
	const better = 2 // of MinLZ's levels; it is read as fast as the first
	p := *sstable.MinLZCompression
	p.DataBlocks.Level, p.ValueBlocks.Level, p.OtherBlocks.Level = better, better, better
	return &p
}

// setLevels sets the filters and the compression of all levels.
func setLevels(opts *pebble.Options, filter pebble.FilterPolicy) {
	profile := lowest()
	for i := range opts.Levels {
		l := &opts.Levels[i]
		l.FilterPolicy = filter
		if i < len(opts.Levels)-1 {
			l.Compression = func() *sstable.CompressionProfile { return sstable.SnappyCompression }
			continue
		}
		l.Compression = func() *sstable.CompressionProfile { return profile }
		l.BlockSize = lowestBlock
	}
}
