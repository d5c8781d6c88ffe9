package kafka

import (
	"bytes"

	"github.com/twmb/franz-go/pkg/kgo"
)

// plainBelow is the size, in bytes, of batches that are not compressed on their way to a broker
// in the same process, or of messages of topics: an event or two have little that repeats, and preparing LZ4 costs
// more than all else in their batch.
const plainBelow = 1 << 10

// largeOnly compresses batches that are large enough.
type largeOnly struct{ kgo.Compressor }

// Compress implements kgo.Compressor.
func (c largeOnly) Compress(
	dst *bytes.Buffer, src []byte, flags ...kgo.CompressFlag,
) ([]byte, kgo.CompressionCodecType) {
	if len(src) < plainBelow {
		return nil, kgo.CodecNone
	}
	return c.Compressor.Compress(dst, src, flags...)
}

// CompressLarge makes a client's compression one of batches that are large enough.
func CompressLarge() kgo.Opt {
	lz4, _ := kgo.DefaultCompressor(kgo.Lz4Compression()) // fails for unknown codecs only
	return kgo.WithCompressor(largeOnly{lz4})
}
