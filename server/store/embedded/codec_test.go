package embedded

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/parley-chat/parley/server/store"
)

func sameItem(a, b store.Item) bool {
	return (a == nil) == (b == nil) && bytes.Equal(appendItem(nil, a), appendItem(nil, b))
}

func TestItemsSurviveTheCodec(t *testing.T) {
	values := rapid.OneOf(
		rapid.Map(rapid.String(), store.String), rapid.Map(rapid.Int64(), store.Int), rapid.Map(rapid.SliceOf(rapid.Byte()), store.Bytes),
		rapid.Map(rapid.Bool(), store.Bool), rapid.Map(rapid.SliceOf(rapid.String()), store.List),
	)
	rapid.Check(t, func(t *rapid.T) {
		it := store.Item{}
		for _, name := range rapid.SliceOfNDistinct(rapid.StringN(1, 20, 255), 0, 20, rapid.ID).Draw(t, "names") {
			it = append(it, store.Attr{Name: name, Value: values.Draw(t, "value")})
		}
		it = store.NewItem(it...)
		got, err := decodeItem(appendItem(nil, it))
		if err != nil || got == nil || len(got) != len(it) {
			t.Fatalf("%v reads as %v, %v", it, got, err)
		}
		for i := range it {
			if got[i].Name != it[i].Name || !got[i].Value.Equal(it[i].Value) {
				t.Fatalf("%v reads as %v", it[i], got[i])
			}
		}
	})
}

// What is read is written again as the same bytes: an item has one encoding, and
// nothing else is taken for one.
func FuzzDecodeItem(f *testing.F) {
	for _, it := range goldenItems {
		f.Add(appendItem(nil, it))
	}
	for _, b := range [][]byte{
		{}, {itemFormat}, {itemFormat, 1}, {2, 0}, {itemFormat, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}, {itemFormat, 0x80, 0},
		{itemFormat, 1, 1, 'a', byte(store.KindBool), 2}, {itemFormat, 1, 1, 'a', 9, 0}, {itemFormat, 0, 0},
		{itemFormat, 2, 1, 'b', byte(store.KindBool), 0, 1, 'a', byte(store.KindBool), 0},
		{itemFormat, 1, 1, 'a', byte(store.KindInt), 255, 255, 255, 255, 255, 255, 255, 255, 255, 2},
		{itemFormat, 1, 1, 'a', byte(store.KindList), 200, 1, 1},
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		it, err := decodeItem(b)
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) || it != nil {
				t.Fatalf("%x reads as %v, %v", b, it, err)
			}
			return
		}
		if again := appendItem(nil, it); !bytes.Equal(again, b) {
			t.Fatalf("%x reads as %v, which is written as %x", b, it, again)
		}
	})
}

// Keys are taken apart as they were put together, and encoded keys are in the order
// of table, partition key and sort key.
func FuzzKeys(f *testing.F) {
	for _, s := range []string{"", "a", "a\x01", "a#", "ab", "\x01", "é", strings.Repeat("x", store.MaxKeyBytes)} {
		f.Add(byte(0), s, "b", byte(5), "a", s)
	}
	tables := store.Tables()
	f.Fuzz(func(t *testing.T, table1 byte, pk1, sk1 string, table2 byte, pk2, sk2 string) {
		a := store.Key{Table: tables[int(table1)%len(tables)].Name, PK: pk1, SK: sk1}
		b := store.Key{Table: tables[int(table2)%len(tables)].Name, PK: pk2, SK: sk2}
		if a.Validate() != nil || b.Validate() != nil {
			return
		}
		x, y := appendKey(nil, a), appendKey(nil, b)
		if got, err := parseKey(a.Table, x); err != nil || got != a {
			t.Fatalf("%v reads as %v, %v", a, got, err)
		}
		want := cmp.Or(
			cmp.Compare(tableNumbers[a.Table], tableNumbers[b.Table]), cmp.Compare(a.PK, b.PK), cmp.Compare(a.SK, b.SK),
		)
		if got := bytes.Compare(x, y); got != want {
			t.Fatalf("%v and %v: order %d, want %d", a, b, got, want)
		}
		prefix := appendPartition(nil, a.Table, a.PK)
		inside := bytes.Compare(prefix, y) <= 0 && bytes.Compare(y, endOf(prefix)) < 0
		if inside != (a.Table == b.Table && a.PK == b.PK) {
			t.Fatalf("%v inside the partition of %v: %v", b, a, inside)
		}
	})
}

func TestExpiryEntries(t *testing.T) {
	key := appendKey(nil, rowKey)
	var last []byte
	for _, at := range []int64{math.MinInt64, -1, 0, 1, 1 << 40, math.MaxInt64} {
		e := appendExpiry(nil, at, key)
		if expiryTime(e) != at || !bytes.Equal(e[expiryPrefix:], key) || bytes.Compare(last, e) >= 0 {
			t.Fatalf("entry of %d: %x after %x", at, e, last)
		}
		last = e
	}
}

// Names are shared among items up to a limit, beyond which they are just copied.
func TestInterner(t *testing.T) {
	var n interner
	for range 2 {
		for i := range 2 * maxNames {
			if want := fmt.Sprint("name", i); n.intern(want) != want {
				t.Fatal(want)
			}
		}
	}
	if got := len(*n.m.Load()); got != maxNames {
		t.Fatalf("%d names are kept", got)
	}
}
