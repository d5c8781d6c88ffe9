package logdir

// MaxBytes is the cap of the log in a memory of that many bytes; 0 for one that is not
// known.
func MaxBytes(memory int64) int64 {
	if memory <= 0 {
		return 512 << 20
	}
	return min(512<<20, memory/16)
}

// Segments are so small that those which are still written to, one for each partition,
// stay well below the log's cap.
const (
	segmentShare = 256
	maxSegment   = 16 << 20
	minSegment   = 64 << 10
)

// SegmentBytes is the size of a segment under a cap, in bytes.
func SegmentBytes(limit int64) int64 { return max(minSegment, min(maxSegment, limit/segmentShare)) }
