package move

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
)

// Content of a frame: texts with their length, numbers as varints.

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendRow(b []byte, r store.Row) []byte {
	b = appendText(appendText(b, r.Key.PK), r.Key.SK)
	b = binary.AppendUvarint(b, uint64(len(r.Item)))
	for _, a := range r.Item {
		b = append(appendText(b, a.Name), byte(a.Value.Kind()))
		switch a.Value.Kind() {
		case store.KindInt:
			b = binary.AppendVarint(b, a.Value.Int64())
		case store.KindBool:
			b = append(b, 0)
			if a.Value.True() {
				b[len(b)-1] = 1
			}
		case store.KindList:
			list := a.Value.Strings()
			b = binary.AppendUvarint(b, uint64(len(list)))
			for _, s := range list {
				b = appendText(b, s)
			}
		default:
			b = appendText(b, a.Value.Str())
		}
	}
	return b
}

var errContent = errors.New("its content cannot be read")

// content is read from its start. After an error it is empty.
type content struct {
	b   []byte
	err error
}

func (c *content) fail() { c.b, c.err = nil, errContent }

func (c *content) count() uint64 {
	n, size := binary.Uvarint(c.b)
	if size <= 0 {
		c.fail()
		return 0
	}
	c.b = c.b[size:]
	return n
}

func (c *content) bytes() []byte {
	n := c.count()
	if n > uint64(len(c.b)) {
		c.fail()
		return nil
	}
	s := c.b[:n]
	c.b = c.b[n:]
	return s
}

func (c *content) text() string { return string(c.bytes()) }

func (c *content) byte() byte {
	if len(c.b) == 0 {
		c.fail()
		return 0
	}
	x := c.b[0]
	c.b = c.b[1:]
	return x
}

func (c *content) value(kind store.Kind) store.Value {
	switch kind {
	case store.KindString:
		return store.String(c.text())
	case store.KindBytes:
		return store.Bytes(c.bytes())
	case store.KindInt:
		n, size := binary.Varint(c.b)
		if size <= 0 {
			c.fail()
			return store.Value{}
		}
		c.b = c.b[size:]
		return store.Int(n)
	case store.KindBool:
		return store.Bool(c.byte() == 1)
	case store.KindList:
		n := c.count()
		if n > uint64(len(c.b)) {
			c.fail()
			return store.Value{}
		}
		list := make([]string, n)
		for i := range list {
			list[i] = c.text()
		}
		return store.List(list)
	}
	c.fail()
	return store.Value{}
}

func (c *content) row(t store.Table) (r store.Row) {
	r.Key = store.Key{Table: t, PK: c.text(), SK: c.text()}
	n := c.count()
	if n > uint64(len(c.b)) {
		c.fail()
		return r
	}
	r.Item = make(store.Item, 0, n)
	for range n {
		name := c.text()
		r.Item = append(r.Item, store.Attr{Name: name, Value: c.value(store.Kind(c.byte()))})
	}
	return r
}

// Sum is what of a section is compared: how many entries it has, and the sum of their hashes, which does
// not depend on their order. Entries that expire are in the first two only: they may be gone when
// the target is read back.
type Sum struct {
	Entries int64 `json:"entries"`
	Hash    hash  `json:"hash"`
	Lasting int64 `json:"lasting"`
	Rest    hash  `json:"lasting_hash"`
}

func (s *Sum) add(entry []byte, lasting bool) {
	h := sha256.Sum256(entry)
	s.Entries++
	s.Hash.add(h)
	if lasting {
		s.Lasting++
		s.Rest.add(h)
	}
}

// hash is a sum of hashes, modulo 2^128.
type hash struct{ hi, lo uint64 }

func (x *hash) add(h [sha256.Size]byte) {
	var carry uint64
	x.lo, carry = bits.Add64(x.lo, binary.BigEndian.Uint64(h[8:]), 0)
	x.hi, _ = bits.Add64(x.hi, binary.BigEndian.Uint64(h[:]), carry)
}

func (x hash) String() string { return fmt.Sprintf("%016x%016x", x.hi, x.lo) }

// MarshalText implements encoding.TextMarshaler.
func (x hash) MarshalText() ([]byte, error) { return []byte(x.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (x *hash) UnmarshalText(b []byte) error {
	if len(b) != 32 {
		return errContent
	}
	_, err := fmt.Sscanf(string(b), "%16x%16x", &x.hi, &x.lo)
	return err
}

func sumRow(s *Sum, buffer []byte, r store.Row) []byte {
	buffer = appendRow(buffer[:0], r)
	s.add(buffer, r.Item.Get(store.ExpiresAtField).Kind() == 0)
	return buffer
}

// sumRecord counts what a record of topics says. One that is damaged counts as it is: it moves to an engine of
// the same kind.
func sumRecord(s *Sum, key, value []byte) {
	err := commitlog.Facts(key, value, func(fact []byte) { s.add(fact, true) })
	if err != nil {
		s.add(slices.Concat(key, value), true)
	}
}

// Records is the name of the section with the records of topics; the others have the names of tables.
const Records = "records of topics"

// part is what a frame has of a section. after is where the section continues; empty: it is complete.
type part struct {
	section string
	after   string
	rows    []store.Row
	records []store.Record
}

func decodePart(f frame) (p part, err error) {
	c := &content{b: f.content}
	p.section, p.after = c.text(), c.text()
	n := c.count()
	if n > uint64(len(c.b)) {
		c.fail()
	}
	for i := uint64(0); i < n && c.err == nil; i++ {
		if f.kind == kindRows {
			p.rows = append(p.rows, c.row(store.Table(p.section)))
		} else {
			p.records = append(p.records, store.Record{Key: c.bytes(), Value: c.bytes()})
		}
	}
	_, known := store.Lookup(store.Table(p.section))
	switch {
	case c.err != nil || len(c.b) > 0:
		return p, errContent
	case f.kind == kindRows && !known:
		return p, fmt.Errorf("this version has no table %.40q", p.section)
	case f.kind == kindRecords && p.section != Records:
		return p, errContent
	}
	return p, nil
}
