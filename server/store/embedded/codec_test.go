package embedded

import (
	"bytes"
	"cmp"
	"math"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/itemcodec"
)

func sameItem(a, b store.Item) bool {
	return (a == nil) == (b == nil) && bytes.Equal(itemcodec.Append(nil, a), itemcodec.Append(nil, b))
}

// Keys are taken apart as they were put together, and encoded keys are in the order
// of table, partition key and sort key.
func FuzzKeys(f *testing.F) {
	for _, s := range []string{"", "a", "a\x01", "a#", "ab", "\x01", "é", strings.Repeat("x", 1024)} {
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
