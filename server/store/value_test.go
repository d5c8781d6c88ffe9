package store_test

import (
	"fmt"
	"testing"

	"github.com/parley-chat/parley/server/store"
)

// A value shows what it is, inside of others too, and no two values look the same.
func TestValuesShowWhatTheyAre(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range []struct {
		value store.Value
		want  string
	}{
		{store.String("7"), `"7"`}, {store.Int(7), `7`}, {store.Bytes([]byte("7")), `bytes "7"`}, {store.Bool(true), `true`},
		{store.String("true"), `"true"`}, {store.List([]string{"a", "b c"}), `["a" "b c"]`}, {store.List(nil), `[]`},
		{store.Value{}, `no value`},
	} {
		got := fmt.Sprint(store.NewItem(store.Attr{Name: "x", Value: c.value}))
		if want := "[{x " + c.want + "}]"; got != want || seen[got] {
			t.Errorf("%s, want %s, and only once", got, want)
		}
		seen[got] = true
	}
	list := []string{"a"}
	v := store.List(list)
	list[0] = "b"
	v.Strings()[0] = "c"
	if !v.Equal(store.List([]string{"a"})) || v.Equal(store.List(nil)) || v.Equal(store.Value{}) {
		t.Errorf("a list that callers changed is %v", v)
	}
}
