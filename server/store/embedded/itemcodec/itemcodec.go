// Package itemcodec is the encoding of the embedded engine's items.
//
// It owns the formats of an item and the list of words that are part of one; it owns
// neither keys nor what an item is kept for. Everything in it is pure, but that names of
// attributes that are no words are kept once. It is safe for concurrent use; one goroutine uses
// a Decoder.
package itemcodec

import (
	"encoding/binary"
	"fmt"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/itemcache"
)

// The first byte of each encoded item. Items of First are read; they have no words.
const (
	First  = 1
	Format = 2
)

// kindWord is the kind of a text that is a word; it stands in encodings only.
const kindWord = store.KindList + 1

// ErrCorrupt says that bytes are nothing that the engine wrote.
var ErrCorrupt = fmt.Errorf("%w: not an encoding of this engine", store.ErrCorrupt)

// Append encodes an item: format, number of attributes, then for each name, kind and
// value, all lengths as varints. A name is the number of a word, or 0 and the text. An item
// has one encoding.
func Append(b []byte, it store.Item) []byte {
	b = append(b, Format)
	b = binary.AppendUvarint(b, uint64(len(it)))
	for i := range it {
		a := &it[i]
		n := wordNumber(a.Name)
		if b = append(b, n); n == 0 {
			b = appendString(b, a.Name)
		}
		kind := a.Value.Kind()
		if kind == store.KindString {
			if n := wordNumber(a.Value.Str()); n != 0 {
				b = append(b, byte(kindWord), n)
				continue
			}
		}
		b = append(b, byte(kind))
		switch kind {
		case store.KindString, store.KindBytes:
			b = appendString(b, a.Value.Str())
		case store.KindInt:
			b = binary.AppendVarint(b, a.Value.Int64())
		case store.KindBool:
			n := byte(0)
			if a.Value.True() {
				n = 1
			}
			b = append(b, n)
		case store.KindList:
			list := a.Value.Strings()
			b = binary.AppendUvarint(b, uint64(len(list)))
			for _, s := range list {
				b = appendString(b, s)
			}
		}
	}
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// Decode reads an encoded item, and nothing that Append does not write. It
// copies b once; strings share the copy.
func Decode(b []byte) (store.Item, error) {
	var d Decoder
	return d.Item(b)
}

// A Decoder takes encodings apart; after an error it returns zero values. One that
// takes several items apart finds the names of each in the one before.
type Decoder struct {
	s     string
	bad   bool
	words bool // of the format that has them
	last  store.Item
}

// Item reads an encoded item, as [Decode] does.
func (d *Decoder) Item(b []byte) (store.Item, error) {
	d.s, d.bad = string(b), false
	switch d.byte() {
	case First:
		d.words = false
	case Format:
		d.words = true
	default:
		return nil, fmt.Errorf("%w: unknown format", ErrCorrupt)
	}
	n := d.length()
	it := make(store.Item, 0, min(n, 64))
	for i := range n {
		a := store.Attr{Name: d.name(i)}
		switch store.Kind(d.byte()) {
		case store.KindString:
			a.Value = store.String(d.text())
		case kindWord:
			a.Value = store.String(d.word())
		case store.KindBytes:
			a.Value = store.BytesOf(d.string())
		case store.KindInt:
			a.Value = store.Int(d.varint())
		case store.KindBool:
			c := d.byte()
			d.bad = d.bad || c > 1
			a.Value = store.Bool(c == 1)
		case store.KindList:
			list := make([]string, 0, 8)
			for m := d.length(); m > 0 && !d.bad; m-- {
				list = append(list, d.string())
			}
			a.Value = store.List(list)
		default:
			d.bad = true
		}
		if d.bad || (len(it) > 0 && it[len(it)-1].Name >= a.Name) {
			return nil, ErrCorrupt
		}
		it = append(it, a)
	}
	if d.bad || len(d.s) > 0 {
		return nil, ErrCorrupt
	}
	d.last = it
	return it, nil
}

var names itemcache.Names //nolint:gochecknoglobals // a cache of strings, the same for all stores

// text reads a text that is written out: in a format with words, it is none.
func (d *Decoder) text() string {
	s := d.string()
	d.bad = d.bad || d.words && wordNumber(s) != 0
	return s
}

// word reads the number of a word.
func (d *Decoder) word() string {
	w := word(d.byte())
	d.bad = d.bad || !d.words || w == ""
	return w
}

// name reads the name of the attribute at a place.
func (d *Decoder) name(i int) string {
	if d.words && d.s != "" && d.s[0] != 0 {
		return d.word()
	}
	if d.words {
		d.byte()
	}
	s := d.text()
	if i < len(d.last) && d.last[i].Name == s {
		return d.last[i].Name
	}
	return names.Intern(s)
}

func (d *Decoder) byte() byte {
	if len(d.s) == 0 {
		d.bad = true
		return 0
	}
	c := d.s[0]
	d.s = d.s[1:]
	return c
}

func (d *Decoder) uvarint() uint64 {
	var n uint64
	for shift := uint(0); shift < 64; shift += 7 {
		c := d.byte()
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			if (c == 0 && shift > 0) || (shift == 63 && c > 1) { // longer than need be, or too large
				break
			}
			return n
		}
	}
	d.bad = true
	return 0
}

func (d *Decoder) varint() int64 {
	u := d.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// length reads a count of things that take at least a byte each.
func (d *Decoder) length() int {
	n := d.uvarint()
	if n > uint64(len(d.s)) {
		d.bad = true
		return 0
	}
	return int(n)
}

func (d *Decoder) string() string {
	n := d.length()
	s := d.s[:n]
	d.s = d.s[n:]
	return s
}
