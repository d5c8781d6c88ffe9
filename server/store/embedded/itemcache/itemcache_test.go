package itemcache

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/parley-chat/parley/server/store"
)

// A cached item keeps nothing else in memory, and a large one is not cached.
func TestItemsAreSmallAndFew(t *testing.T) {
	text := strings.Repeat("x", 64<<10)
	it := store.NewItem(store.Attr{Name: "a", Value: store.String(text[:128])},
		store.Attr{Name: "b", Value: store.Int(7)}, store.Attr{Name: "c", Value: store.Bytes([]byte("yz"))})
	var s Set
	for name, c := range map[string]struct {
		put       func(store.Item)
		own, text bool // the item itself is kept; its text is
	}{
		"put":        {func(it store.Item) { s.Put([]byte("k"), it) }, false, false},
		"foreign":    {func(it store.Item) { s.Take([]byte("k"), it, true) }, true, false},
		"old friend": {func(it store.Item) { s.Take([]byte("k"), it, false) }, true, true},
	} {
		before := slices.Clone(it)
		c.put(before)
		got, ok := s.Get([]byte("k"))
		if !ok || fmt.Sprint(got) != fmt.Sprint(it) {
			t.Fatalf("%s: %v, want %v", name, got, it)
		}
		if own := &got[0] == &before[0]; own != c.own {
			t.Errorf("%s: the item itself is kept: %v", name, own)
		}
		if same := unsafe.StringData(got[0].Value.Str()) == unsafe.StringData(text); same != c.text {
			t.Errorf("%s: the text is kept: %v", name, same)
		}
	}
	s.Take([]byte("k"), store.NewItem(store.Attr{Name: "a", Value: store.String(text)}), true)
	if _, ok := s.Get([]byte("k")); ok {
		t.Error("64 KiB are taken")
	}
	s.Put([]byte("k"), store.NewItem(store.Attr{Name: "a", Value: store.String(text)}))
	if _, ok := s.Get([]byte("k")); ok {
		t.Error("64 KiB are cached")
	}
	for i := range 10 {
		s.Put(fmt.Append(nil, i), it)
	}
	for i, want := range []bool{6: true, 7: true, 8: true, 9: true} {
		if _, ok := s.Get(fmt.Append(nil, i)); ok != want {
			t.Errorf("item %d of 10: cached %v, want %v", i, ok, want)
		}
	}
	s.Hide(fmt.Append(nil, 8))
	if _, ok := s.Get(fmt.Append(nil, 8)); ok {
		t.Error("a hidden item is there")
	}
	s.Put(fmt.Append(nil, 9), store.NewItem(store.Attr{Name: "a", Value: store.String(text)}))
	if _, ok := s.Get(fmt.Append(nil, 9)); ok {
		t.Error("what a large item took the place of is there")
	}
}

// Names are shared among items up to a limit, beyond which they are just copied.
func TestInterner(t *testing.T) {
	var n Names
	for range 2 {
		for i := range 2 * maxNames {
			if want := fmt.Sprint("name", i); n.Intern(want) != want {
				t.Fatal(want)
			}
		}
	}
	if got := len(*n.m.Load()); got != maxNames {
		t.Fatalf("%d names are kept", got)
	}
}
