package itemcodec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/parley-chat/parley/server/store"
)

// sample has an attribute of each kind.
var sample = store.NewItem(store.Attr{Name: "text", Value: store.String("Tea ☕")},
	store.Attr{Name: "version", Value: store.Int(-1 << 63)}, store.Attr{Name: "hash", Value: store.Bytes([]byte{0, 255})},
	store.Attr{Name: "archived", Value: store.Bool(true)},
	store.Attr{Name: "members", Value: store.List([]string{"alice", "", "owner"})})

func TestItemsSurviveTheCodec(t *testing.T) {
	values := rapid.OneOf(
		rapid.Map(rapid.String(), store.String), rapid.Map(rapid.Int64(), store.Int),
		rapid.Map(rapid.SliceOf(rapid.Byte()), store.Bytes),
		rapid.Map(rapid.Bool(), store.Bool), rapid.Map(rapid.SliceOf(rapid.String()), store.List),
	)
	rapid.Check(t, func(t *rapid.T) {
		it := store.Item{}
		for _, name := range rapid.SliceOfNDistinct(rapid.StringN(1, 20, 255), 0, 20, rapid.ID).Draw(t, "names") {
			it = append(it, store.Attr{Name: name, Value: values.Draw(t, "value")})
		}
		it = store.NewItem(it...)
		got, err := Decode(Append(nil, it))
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

// What is read is written again as the same bytes: an item has one encoding in a format, and
// nothing else is taken for one. One of the first format comes back the same item.
func FuzzDecodeItem(f *testing.F) {
	for _, it := range []store.Item{{}, sample, store.NewItem(store.Attr{Name: "role", Value: store.String("owner")})} {
		f.Add(Append(nil, it))
		f.Add(appendNamed(it))
	}
	for _, b := range [][]byte{
		{}, {Format}, {Format, 1}, {Format + 1, 0}, {First, 1, 1, 'a', byte(kindWord), 1},
		{First, 1, 4, 'r', 'o', 'l', 'e', byte(store.KindString), 5, 'o', 'w', 'n', 'e', 'r'},
		{Format, 1, 0, 4, 'r', 'o', 'l', 'e', byte(store.KindBool), 0}, {Format, 1, 200, byte(store.KindBool), 0},
		{Format, 1, 1, byte(store.KindString), 5, 'o', 'w', 'n', 'e', 'r'}, {Format, 1, 1, byte(kindWord), 0},
		{Format, 1, 1, byte(kindWord), 255}, {Format, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1},
		{Format, 0x80, 0},
		{Format, 1, 0, 1, 'a', byte(store.KindBool), 2}, {Format, 1, 0, 1, 'a', 9, 0}, {Format, 0, 0},
		{Format, 2, 0, 1, 'b', byte(store.KindBool), 0, 0, 1, 'a', byte(store.KindBool), 0},
		{Format, 2, 2, byte(store.KindBool), 0, 1, byte(store.KindBool), 0},
		{Format, 1, 0, 1, 'a', byte(store.KindInt), 255, 255, 255, 255, 255, 255, 255, 255, 255, 2},
		{Format, 1, 0, 1, 'a', byte(store.KindList), 200, 1, 1},
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		it, err := Decode(b)
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) || it != nil {
				t.Fatalf("%x reads as %v, %v", b, it, err)
			}
			return
		}
		again := Append(nil, it)
		if b[0] == First {
			same, err := Decode(again)
			if err != nil || !bytes.Equal(Append(nil, same), again) || !bytes.Equal(appendNamed(it), b) {
				t.Fatalf("%x reads as %v, which comes back as %v, %v", b, it, same, err)
			}
			return
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x reads as %v, which is written as %x", b, it, again)
		}
	})
}

// appendNamed is the encoding of the first format, as releases with it wrote items.
func appendNamed(it store.Item) []byte {
	b := binary.AppendUvarint([]byte{First}, uint64(len(it)))
	for _, a := range it {
		b = append(appendString(b, a.Name), byte(a.Value.Kind()))
		switch v := a.Value; v.Kind() {
		case store.KindString, store.KindBytes:
			b = appendString(b, v.Str())
		case store.KindInt:
			b = binary.AppendVarint(b, v.Int64())
		case store.KindBool:
			n := byte(0)
			if v.True() {
				n = 1
			}
			b = append(b, n)
		case store.KindList:
			b = binary.AppendUvarint(b, uint64(len(v.Strings())))
			for _, s := range v.Strings() {
				b = appendString(b, s)
			}
		}
	}
	return b
}

// Words have one number each, and no word is too long to be found.
func TestWords(t *testing.T) {
	for i, w := range words {
		if n := wordNumber(w); int(n) != i+1 || word(n) != w {
			t.Errorf("word %d, %q, has the number %d, which says %q", i+1, w, n, word(n))
		}
		for _, other := range []string{w + "s", w[1:], strings.ToUpper(w), w + "\x00"} {
			if n := wordNumber(other); n != 0 && words[n-1] != other {
				t.Errorf("%q has the number of %q", other, words[n-1])
			}
		}
	}
	kept, err := os.ReadFile("testdata/words.txt")
	if err != nil || strings.Join(words[:], "\n")+"\n" != string(kept) {
		t.Errorf("the words of format %d are not those that stores have: %v", Format, err)
	}
	if wordNumber("") != 0 || word(0) != "" || word(255) != "" {
		t.Error("there are words that nobody wrote")
	}
}
