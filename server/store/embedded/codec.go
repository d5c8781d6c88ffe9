package embedded

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/parley-chat/parley/server/store"
)

// Key spaces of the engine, the first byte of each key.
const (
	spaceItems  = 0x01 // table, pk, 0, sk → item
	spaceExpiry = 0x02 // expires_at, item key → nothing
)

// itemFormat is the first byte of each encoded item.
const itemFormat = 1

var errCorrupt = fmt.Errorf("%w: not an encoding of this engine", store.ErrCorrupt)

// tableNumbers gives each table its byte, by its place in store.Tables.
var tableNumbers = func() map[store.Table]byte {
	m := map[store.Table]byte{}
	for i, d := range store.Tables() {
		m[d.Name] = byte(i + 1)
	}
	return m
}()

func appendPartition(b []byte, t store.Table, pk string) []byte {
	b = append(b, spaceItems, tableNumbers[t])
	b = append(b, pk...)
	return append(b, 0)
}

// appendKey encodes a key; the order of encoded keys is that of table, pk, sk.
func appendKey(b []byte, k store.Key) []byte {
	return append(appendPartition(b, k.Table, k.PK), k.SK...)
}

// parseKey splits an encoded key of a known table.
func parseKey(t store.Table, b []byte) (store.Key, error) {
	if len(b) < 3 || b[0] != spaceItems {
		return store.Key{}, errCorrupt
	}
	pk, sk, ok := strings.Cut(string(b[2:]), "\x00")
	if !ok {
		return store.Key{}, errCorrupt
	}
	return store.Key{Table: t, PK: pk, SK: sk}, nil
}

// endOf is the end of the range of keys that begin with a partition's prefix.
func endOf(prefix []byte) []byte {
	end := slices.Clone(prefix)
	end[len(end)-1]++ // from the zero byte that ends the partition key
	return end
}

const expiryPrefix = 1 + 8 // bytes of an expiry entry before the item's key

// appendExpiry encodes an entry of the expiry index, in order of time.
func appendExpiry(b []byte, at int64, itemKey []byte) []byte {
	b = append(b, spaceExpiry)
	b = binary.BigEndian.AppendUint64(b, uint64(at)^1<<63) // negative ones first
	return append(b, itemKey...)
}

func expiryTime(entry []byte) int64 {
	return int64(binary.BigEndian.Uint64(entry[1:]) ^ 1<<63)
}

// appendItem encodes an item: format, number of attributes, then for each name,
// kind and value, all lengths as varints. An item has one encoding.
func appendItem(b []byte, it store.Item) []byte {
	b = append(b, itemFormat)
	b = binary.AppendUvarint(b, uint64(len(it)))
	for _, a := range it {
		b = appendString(b, a.Name)
		b = append(b, byte(a.Value.Kind()))
		switch a.Value.Kind() {
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

// decodeItem reads an encoded item, and nothing that appendItem does not write. It
// copies b once; strings share the copy.
func decodeItem(b []byte) (store.Item, error) {
	var d decoder
	return d.item(b)
}

// decoder takes encodings apart; after an error it returns zero values. One that
// takes several items apart finds the names of each in the one before.
type decoder struct {
	s    string
	bad  bool
	last store.Item
}

func (d *decoder) item(b []byte) (store.Item, error) {
	d.s, d.bad = string(b), false
	if d.byte() != itemFormat {
		return nil, fmt.Errorf("%w: unknown format", errCorrupt)
	}
	n := d.length()
	it := make(store.Item, 0, min(n, 64))
	for i := range n {
		a := store.Attr{Name: d.name(i)}
		switch store.Kind(d.byte()) {
		case store.KindString:
			a.Value = store.String(d.string())
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
			return nil, errCorrupt
		}
		it = append(it, a)
	}
	if d.bad || len(d.s) > 0 {
		return nil, errCorrupt
	}
	d.last = it
	return it, nil
}

// name reads the name of the attribute at a place.
func (d *decoder) name(i int) string {
	s := d.string()
	if i < len(d.last) && d.last[i].Name == s {
		return d.last[i].Name
	}
	return names.intern(s)
}

func (d *decoder) byte() byte {
	if len(d.s) == 0 {
		d.bad = true
		return 0
	}
	c := d.s[0]
	d.s = d.s[1:]
	return c
}

func (d *decoder) uvarint() uint64 {
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

func (d *decoder) varint() int64 {
	u := d.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// length reads a count of things that take at least a byte each.
func (d *decoder) length() int {
	n := d.uvarint()
	if n > uint64(len(d.s)) {
		d.bad = true
		return 0
	}
	return int(n)
}

func (d *decoder) string() string {
	n := d.length()
	s := d.s[:n]
	d.s = d.s[n:]
	return s
}

// interner keeps one copy of each attribute name, so that a cached item does not
// hold on to its names. The map is replaced, never changed.
type interner struct {
	m atomic.Pointer[map[string]string]
}

const maxNames = 1024

var names interner

func (n *interner) intern(s string) string {
	old := n.m.Load()
	if old != nil {
		if t, ok := (*old)[s]; ok {
			return t
		}
		if len(*old) >= maxNames {
			return strings.Clone(s)
		}
	}
	next := map[string]string{}
	if old != nil {
		for k, v := range *old {
			next[k] = v
		}
	}
	s = strings.Clone(s)
	next[s] = s
	n.m.CompareAndSwap(old, &next) // losing a race costs a copy
	return s
}
