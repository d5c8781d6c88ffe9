package serve

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kbin"
)

// Limits of what one request may contain.
const (
	// maxElements bounds the elements of all lists of a request together. A request that names each of
	// 1,024 partitions of 30 topics has fewer. Its lists then take a few megabytes of memory at most.
	maxElements = 32 << 10
	maxTags     = 16 // of one struct; Kafka defines three at most
)

var errMalformed = errors.New("kafka: malformed request")

// shape is the encoding of a request, in the order of its fields.
//
// kmsg allocates a list of as many elements as the request claims, and loops over as many tags, before it
// notices that the bytes are missing. A request of one megabyte can therefore cost it hundreds of megabytes
// and minutes. The shape is walked first: it allocates nothing, and a request passes only if all its
// elements are present.
type shape []field

// field is one field of a struct.
type field struct {
	kind     kind
	size     int   // of a fixed field, in bytes
	from, to int16 // versions that have the field
	elem     shape // of lists and structs
}

type kind uint8

const (
	fixed    kind = iota + 1
	text          // a string, nullable or not
	blob          // bytes, nullable or not
	list          // of structs, nullable or not
	plain         // a list of fields without a struct
	nullable      // a struct, or null
)

// parseShape reads the notation of the table of requests. Fields are separated by spaces:
//
//	1 2 4 8 16   a field of as many bytes
//	s b          a string, bytes
//	[...]        a list of structs
//	*4 *s        a list of fields
//	?[...]       a nullable struct
//	3+:f 0-4:f   a field that only these versions have
func parseShape(text string) (shape, error) {
	p := &shapeParser{rest: text}
	s, err := p.fields()
	if err != nil || p.rest != "" {
		return nil, fmt.Errorf("kafka: shape %q at %q: %w", text, p.rest, errors.Join(err, errMalformed))
	}
	return s, nil
}

type shapeParser struct{ rest string }

func (p *shapeParser) fields() (shape, error) {
	var s shape
	for {
		p.rest = strings.TrimLeft(p.rest, " ")
		if p.rest == "" || p.rest[0] == ']' {
			return s, nil
		}
		f, err := p.field()
		if err != nil {
			return nil, err
		}
		s = append(s, f)
	}
}

func (p *shapeParser) field() (field, error) {
	f := field{to: 1<<15 - 1}
	word, _, _ := strings.Cut(p.rest, " ")
	if versions, _, found := strings.Cut(word, ":"); found && !strings.ContainsAny(versions, "[]*?") {
		p.rest = p.rest[len(versions)+1:]
		from, to, bounded := strings.Cut(strings.TrimSuffix(versions, "+"), "-")
		first, err := strconv.ParseInt(from, 10, 16)
		if err != nil {
			return f, err
		}
		f.from = int16(first)
		if bounded {
			last, err := strconv.ParseInt(to, 10, 16)
			if err != nil {
				return f, err
			}
			f.to = int16(last)
		}
	}
	return p.typed(f)
}

// typed reads the type of a field.
func (p *shapeParser) typed(f field) (field, error) {
	if p.rest == "" {
		return f, errMalformed
	}
	var err error
	switch c := p.rest[0]; {
	case c == 's' || c == 'b':
		f.kind = map[byte]kind{'s': text, 'b': blob}[c]
		p.rest = p.rest[1:]
	case c == '*':
		p.rest = p.rest[1:]
		f.kind = plain
		var elem field
		elem, err = p.typed(field{to: 1<<15 - 1})
		f.elem = shape{elem}
	case c == '[' || strings.HasPrefix(p.rest, "?["):
		f.kind = list
		if c == '?' {
			f.kind, p.rest = nullable, p.rest[1:]
		}
		p.rest = p.rest[1:]
		if f.elem, err = p.fields(); err == nil && !strings.HasPrefix(p.rest, "]") {
			err = errMalformed
		}
		p.rest = strings.TrimPrefix(p.rest, "]")
	default:
		end := strings.IndexFunc(p.rest, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(p.rest)
		}
		f.kind = fixed
		f.size, err = strconv.Atoi(p.rest[:end])
		p.rest = p.rest[end:]
	}
	return f, err
}

// walk checks that b begins with a request of the shape, and returns the bytes behind it.
func (s shape) walk(b []byte, version int16, flexible bool) (rest []byte, err error) {
	w := walker{rest: b, version: version, flexible: flexible}
	w.fields(s)
	if w.bad {
		return nil, errMalformed
	}
	return w.rest, nil
}

type walker struct {
	rest     []byte
	version  int16
	flexible bool
	elements int
	bad      bool
}

// fields walks a struct with its tags.
func (w *walker) fields(s shape) {
	for i := range s {
		if f := &s[i]; w.version >= f.from && w.version <= f.to {
			w.field(f)
		}
		if w.bad {
			return
		}
	}
	if w.flexible {
		w.tags()
	}
}

func (w *walker) field(f *field) {
	switch f.kind {
	case fixed:
		w.skip(f.size)
	case text:
		w.skip(w.length(2))
	case blob:
		w.skip(w.length(4))
	case list, plain:
		n := w.length(4)
		if w.elements += max(n, 0); n > len(w.rest) || w.elements > maxElements {
			w.bad = true
		}
		for ; n > 0 && !w.bad; n-- {
			if f.kind == plain {
				w.field(&f.elem[0])
			} else {
				w.fields(f.elem)
			}
		}
	case nullable:
		if b := w.rest; len(b) > 0 && int8(b[0]) < 0 {
			w.skip(1)
			return
		}
		w.skip(1)
		if !w.bad {
			w.fields(f.elem)
		}
	}
}

// length reads a length, which takes size bytes in versions that are not flexible. The length of null is -1.
func (w *walker) length(size int) int {
	if w.flexible {
		return w.uvarint() - 1
	}
	b := w.rest
	if w.skip(size); w.bad {
		return 0
	}
	if size == 2 {
		return int(int16(binary.BigEndian.Uint16(b)))
	}
	return int(int32(binary.BigEndian.Uint32(b)))
}

func (w *walker) uvarint() int {
	v, n := kbin.Uvarint(w.rest)
	if n <= 0 || v > 1<<31-1 {
		w.bad = true
		return 0
	}
	w.rest = w.rest[n:]
	return int(v)
}

// tags walks the tagged fields of a struct.
func (w *walker) tags() {
	n := w.uvarint()
	if n > maxTags {
		w.bad = true
	}
	for ; n > 0 && !w.bad; n-- {
		w.uvarint()
		w.skip(w.uvarint())
	}
}

// skip skips n bytes; null has none.
func (w *walker) skip(n int) {
	if n > len(w.rest) {
		w.bad = true
	}
	if n > 0 && !w.bad {
		w.rest = w.rest[n:]
	}
}
