package move

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// A frame is the length of its body, a checksum, and the body: its kind and its content, compressed. The
// checksum is CRC-32C of the body and the frame's number: a frame in another's place is noticed, too.
const (
	kindHeader  = 'h'
	kindFile    = 'f'
	kindRows    = 'r'
	kindRecords = 'l'
	kindEnd     = 'e'

	frameHeader = 4 + 4
	// maxFrame bounds a frame, in bytes, compressed or not: a page of rows has a megabyte, and a batch of a
	// topic eight.
	maxFrame = 16 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(body []byte, number uint64) uint32 {
	return crc32.Update(crc32.Checksum(body, castagnoli), castagnoli, binary.BigEndian.AppendUint64(nil, number))
}

// frame is a frame that was read.
type frame struct {
	number  uint64
	kind    byte
	content []byte
	end     int64 // of the frame in the stream
}

// writer writes frames.
type writer struct {
	to     io.Writer
	zip    *zstd.Encoder
	number uint64
	buffer []byte
}

func newWriter(to io.Writer, number uint64) (*writer, error) {
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	return &writer{to: to, zip: zip, number: number}, err
}

func (w *writer) frame(kind byte, content []byte) error {
	if len(content) > maxFrame {
		return fmt.Errorf("a frame of %d bytes is larger than %d", len(content), maxFrame)
	}
	b := append(w.buffer[:0], make([]byte, frameHeader)...)
	b = w.zip.EncodeAll(content, append(b, kind))
	w.buffer = b
	binary.BigEndian.PutUint32(b, uint32(len(b)-frameHeader))
	binary.BigEndian.PutUint32(b[4:], checksum(b[frameHeader:], w.number))
	w.number++
	_, err := w.to.Write(b)
	return err
}

// reader reads frames.
type reader struct {
	from   *bufio.Reader
	zip    *zstd.Decoder
	number uint64
	at     int64
	body   []byte
	unzip  []byte
}

// newReader reads the first line. Errors: ErrDamaged, ErrCutOff, and those of the stream.
func newReader(from io.Reader) (*reader, error) {
	zip, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxFrame))
	if err != nil {
		return nil, err
	}
	r := &reader{from: bufio.NewReaderSize(from, 256<<10), zip: zip, at: int64(len(firstLine))}
	line := make([]byte, len(firstLine))
	n, err := io.ReadFull(r.from, line)
	switch got := string(line[:n]); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && strings.HasPrefix(firstLine, got):
		return nil, fmt.Errorf("%w: it has %d bytes", ErrCutOff, n)
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return nil, err
	case got == firstLine:
		return r, nil
	case strings.HasPrefix(got, product):
		return nil, fmt.Errorf("the export has format %.10q, this version reads %d", strings.TrimSpace(got[len(product):]),
			version)
	}
	return nil, errors.New("this is no export of Parley")
}

// next reads a frame, whose content is valid until the next one. Errors: ErrCutOff if the stream ends
// before the frame does, ErrDamaged, and those of the stream.
func (r *reader) next() (f frame, err error) {
	f.number = r.number
	var head [frameHeader]byte
	if _, err := io.ReadFull(r.from, head[:]); err != nil {
		return f, r.ended(err)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size == 0 || size > maxFrame {
		return f, r.damaged("its length is %d", size)
	}
	if cap(r.body) < int(size) {
		r.body = make([]byte, size)
	}
	r.body = r.body[:size]
	if _, err := io.ReadFull(r.from, r.body); err != nil {
		return f, r.ended(err)
	}
	if checksum(r.body, r.number) != binary.BigEndian.Uint32(head[4:]) {
		return f, r.damaged("its checksum is wrong")
	}
	if r.unzip, err = r.zip.DecodeAll(r.body[1:], r.unzip[:0]); err != nil {
		return f, r.damaged("it cannot be decompressed: %v", err)
	}
	f.kind, f.content = r.body[0], r.unzip
	r.number++
	r.at += frameHeader + int64(size)
	f.end = r.at
	return f, nil
}

func (r *reader) ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends in frame %d, which begins at byte %d", ErrCutOff, r.number, r.at)
	}
	return err
}

// damaged says that the frame that is read is not as it was written.
func (r *reader) damaged(format string, args ...any) error {
	return damaged("frame %d, which begins at byte %d: %s", r.number, r.at, fmt.Sprintf(format, args...))
}
