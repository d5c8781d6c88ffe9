package salvage

import (
	"encoding/binary"
	"hash/crc32"
)

// A log file of Pebble is a sequence of blocks of 32 KiB, and each block one of chunks: a record is one
// chunk or more, and no chunk crosses the end of a block. So a reader that meets a damaged chunk can
// continue with the next chunk, if the length of the damaged one leads to it, and with the next block
// otherwise. Pebble's own reader ends there.
const (
	logBlock = 32 << 10

	plainHeader = 7               // checksum, length, kind: of a MANIFEST
	logHeader   = plainHeader + 4 // and the number of the log, which may be an old file
	syncHeader  = logHeader + 8   // and up to where the log was synced
)

// Positions of a chunk within its record.
const (
	chunkFull = iota
	chunkFirst
	chunkMiddle
	chunkLast
)

// chunk is one chunk of a block.
type chunk struct {
	position int
	payload  []byte
	size     int // with its header
}

// extent is how much of a log file can be read.
type extent struct {
	damage int64 // bytes between records that can be read, and that cannot
	end    int   // of the last record: a log ends without a mark, so what follows may be no damage
}

// records yields the whole records of a log file.
func records(b []byte, number uint32, yield func([]byte) error) (x extent, err error) {
	var record []byte
	open := false       // the record's first chunk was there
	suspect := int64(0) // bytes since the last readable chunk
	for at := 0; at < len(b); {
		end := min(len(b), at-at%logBlock+logBlock)
		c, ended, ok := parseChunk(b[at:end], number)
		if ended {
			x.end = at + logHeader
			x.damage += suspect
			break
		}
		if !ok {
			if size := skip(b[at:end], number); size > 0 {
				open = false
				suspect += int64(size)
				at += size
				continue
			}
			if rest := b[at:end]; len(rest) >= syncHeader || !zero(rest) {
				open = false
				suspect += int64(end - at)
			}
			at = end
			continue
		}
		x.damage, suspect = x.damage+suspect, 0
		at += c.size
		switch c.position {
		case chunkFull, chunkFirst:
			record, open = append(record[:0], c.payload...), true
		case chunkMiddle, chunkLast:
			record = append(record, c.payload...)
		}
		if open && (c.position == chunkFull || c.position == chunkLast) {
			open = false
			x.end = at
			if err := yield(record); err != nil {
				return x, err
			}
		}
	}
	return x, nil
}

// skip returns the size of a damaged chunk at the beginning of b if its length leads to a chunk that
// can be read, or to the mark behind the last record, and 0 otherwise. It does not search: a message may
// contain what looks like a chunk.
func skip(b []byte, number uint32) int {
	if len(b) < plainHeader {
		return 0
	}
	length := int(binary.LittleEndian.Uint16(b[4:]))
	for _, header := range []int{plainHeader, logHeader, syncHeader} { // its kind may be what is damaged
		if size := header + length; size < len(b) {
			if _, ended, ok := parseChunk(b[size:], number); ended || ok {
				return size
			}
		}
	}
	return 0
}

func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// parseChunk reads the chunk at the beginning of b, which ends with its block. ended says that it is
// the mark behind the last record of a log.
func parseChunk(b []byte, number uint32) (c chunk, ended, ok bool) {
	if len(b) < plainHeader {
		return c, false, false
	}
	kind, length := int(b[6])-1, int(binary.LittleEndian.Uint16(b[4:]))
	header := plainHeader
	switch {
	case kind < 0 || kind >= 12:
		return c, false, false
	case kind >= 8:
		header = syncHeader
	case kind >= 4:
		header = logHeader
	}
	if len(b) < header+length || checksum(b[6:header+length]) != binary.LittleEndian.Uint32(b) {
		return c, false, false
	}
	if header > plainHeader {
		if n := binary.LittleEndian.Uint32(b[plainHeader:]); n != number {
			return c, n == number+1 && length == 0, false // else it is of the log that the file had before
		}
	}
	return chunk{kind % 4, b[header : header+length], header + length}, false, true
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is that of blocks and chunks.
func checksum(b []byte) uint32 { return cook(crc32.Checksum(b, castagnoli)) }

// cook changes a checksum, so that one of bytes that contain checksums differs.
func cook(c uint32) uint32 { return (c>>15 | c<<17) + 0xa282ead8 }
