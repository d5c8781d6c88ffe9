package edge

import "strconv"

// preface is what an HTTP/2 client sends first.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Kinds of frames that count for more than their number.
const (
	frameData    = 0x0
	frameHeaders = 0x1
)

var frameNames = [...]string{"DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS", "PUSH_PROMISE", "PING", "GOAWAY",
	"WINDOW_UPDATE", "CONTINUATION"}

// mode of one direction of a connection.
type mode uint8

const (
	opening mode = iota // it may be HTTP/2
	plain               // it is not
	framed              // it is
)

// frame is the header of one.
type frame struct {
	kind   byte
	length int // of the payload, in bytes
}

func (f frame) name() string {
	if int(f.kind) < len(frameNames) {
		return frameNames[f.kind]
	}
	return "type " + strconv.Itoa(int(f.kind))
}

const frameHeader = 9 // bytes

// frames finds the frames in what passes in one direction, without keeping it.
type frames struct {
	mode   mode
	have   int // bytes of the preface or of a header that came so far
	header [frameHeader]byte
	skip   int // bytes of a payload to come
}

// next returns the next frame whose header ends in b, and what of b follows it; ok is
// false if none does.
func (f *frames) next(b []byte) (out frame, rest []byte, ok bool) {
	if f.mode == opening {
		b = f.open(b)
	}
	if f.mode != framed {
		return out, nil, false
	}
	skip := min(f.skip, len(b))
	f.skip -= skip
	b = b[skip:]
	n := copy(f.header[f.have:], b)
	if f.have += n; f.have < frameHeader {
		return out, nil, false
	}
	f.have = 0
	f.skip = int(f.header[0])<<16 | int(f.header[1])<<8 | int(f.header[2])
	return frame{kind: f.header[3], length: f.skip}, b[n:], true
}

// open compares the beginning of a connection with the preface, and returns what
// follows.
func (f *frames) open(b []byte) []byte {
	n := min(len(preface)-f.have, len(b))
	if string(b[:n]) != preface[f.have:f.have+n] {
		f.mode = plain
		return nil
	}
	if f.have += n; f.have == len(preface) {
		f.mode, f.have = framed, 0
	}
	return b[n:]
}
