package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind is the type of a value.
type Kind uint8

// The kinds of values, after DynamoDB's S, N (integers only), B, BOOL and L of S.
const (
	KindString Kind = iota + 1
	KindInt
	KindBytes
	KindBool
	KindList
)

// Value is an immutable typed attribute value; the zero Value is "no value".
type Value struct {
	kind Kind
	num  int64
	str  string    // string and bytes: bytes are kept as a string so that no caller can change them
	list *[]string // rare: the pointer keeps the other values small
}

// String makes a string value.
func String(s string) Value { return Value{kind: KindString, str: s} }

// Int makes an integer value.
func Int(n int64) Value { return Value{kind: KindInt, num: n} }

// Bytes makes a bytes value from a copy of b.
func Bytes(b []byte) Value { return Value{kind: KindBytes, str: string(b)} }

// BytesOf makes a bytes value from the bytes of a string.
func BytesOf(s string) Value { return Value{kind: KindBytes, str: s} }

// Bool makes a boolean value.
func Bool(b bool) Value {
	v := Value{kind: KindBool}
	if b {
		v.num = 1
	}
	return v
}

// List makes a list of strings from a copy of l.
func List(l []string) Value {
	own := slices.Clone(l)
	return Value{kind: KindList, list: &own}
}

// Kind returns the kind; 0 for the zero Value.
func (v Value) Kind() Kind { return v.kind }

// Str returns the string of a string or bytes value, else "".
func (v Value) Str() string { return v.str }

// Int64 returns the number of an integer value, else 0.
func (v Value) Int64() int64 { return v.num }

// True reports whether v is the boolean true.
func (v Value) True() bool { return v.kind == KindBool && v.num == 1 }

// Blob returns a copy of a bytes value, else an empty slice.
func (v Value) Blob() []byte { return []byte(v.str) }

// Strings returns a copy of a list value, else nil.
func (v Value) Strings() []string { return slices.Clone(v.strings()) }

func (v Value) strings() []string {
	if v.list == nil {
		return nil
	}
	return *v.list
}

// String shows the value to people: no two values look the same.
func (v Value) String() string {
	switch v.kind {
	case KindString:
		return strconv.Quote(v.str)
	case KindInt:
		return strconv.FormatInt(v.num, 10)
	case KindBytes:
		return "bytes " + strconv.Quote(v.str)
	case KindBool:
		return strconv.FormatBool(v.True())
	case KindList:
		return fmt.Sprintf("%q", v.strings())
	}
	return "no value"
}

// Equal reports whether kind and content are the same.
func (v Value) Equal(w Value) bool {
	return v.kind == w.kind && v.num == w.num && v.str == w.str && slices.Equal(v.strings(), w.strings())
}

// Attr is a named value.
type Attr struct {
	Name  string
	Value Value
}

// Item is the set of attributes of one item, without its key, sorted by name.
// A nil Item means that there is none; an existing item without attributes is
// an empty, non-nil Item. Items are immutable once made.
type Item []Attr

// NewItem makes an item from attributes in any order. Names must be distinct.
func NewItem(attrs ...Attr) Item {
	it := make(Item, len(attrs))
	copy(it, attrs)
	slices.SortFunc(it, func(a, b Attr) int { return strings.Compare(a.Name, b.Name) })
	return it
}

// Get returns the named value; the zero Value if the attribute is missing.
func (it Item) Get(name string) Value {
	for i := range it { // about a dozen attributes: a scan beats a search
		if it[i].Name == name {
			return it[i].Value
		}
	}
	return Value{}
}

// Size is the size that counts for the limits, in bytes: names and values, as
// DynamoDB counts them (numbers at their upper bound), without the key.
func (it Item) Size() int {
	n := 0
	for _, a := range it {
		n += len(a.Name) + a.Value.size()
	}
	return n
}

func (v Value) size() int {
	switch v.kind {
	case KindInt:
		return 11
	case KindBool:
		return 1
	case KindList:
		n := 3
		for _, s := range v.strings() {
			n += 1 + len(s)
		}
		return n
	default:
		return len(v.str)
	}
}
