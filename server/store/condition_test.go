package store_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/parley-chat/parley/server/store"
)

func attr(name string, v store.Value) store.Attr { return store.Attr{Name: name, Value: v} }

func same(a, b store.Item) bool {
	return (a == nil) == (b == nil) &&
		slices.EqualFunc(a, b, func(x, y store.Attr) bool { return x.Name == y.Name && x.Value.Equal(y.Value) })
}

func TestEvaluate(t *testing.T) {
	it := store.NewItem(attr("n", store.Int(5)), attr("s", store.String("m")), attr("b", store.Bytes([]byte("m"))),
		attr("t", store.Bool(true)), attr("l", store.List([]string{"x"})))
	none := store.Condition{}
	for _, c := range []struct {
		name    string
		cond    store.Condition
		item    bool // of the item above
		missing bool // of no item
	}{
		{"empty", nil, true, true},
		{"exists", store.Exists(), true, false},
		{"absent", store.Absent(), false, true},
		{"equal", none.Eq("n", store.Int(5)), true, false},
		{"equal to another", none.Eq("n", store.Int(6)), false, false},
		{"equal to another kind", none.Eq("s", store.BytesOf("m")), false, false},
		{"equal list", none.Eq("l", store.List([]string{"x"})), true, false},
		{"equal on a missing attribute", none.Eq("x", store.Int(0)), false, false},
		{"not equal", none.Ne("n", store.Int(6)), true, true},
		{"not equal to the same", none.Ne("n", store.Int(5)), false, true},
		{"not equal to another kind", none.Ne("n", store.String("5")), true, true},
		{"not equal on a missing attribute", none.Ne("x", store.Int(5)), true, true},
		{"less", none.Lt("n", store.Int(6)), true, false},
		{"less than the same", none.Lt("n", store.Int(5)), false, false},
		{"less, strings", none.Lt("s", store.String("n")), true, false},
		{"less, other kinds", none.Lt("n", store.String("9")), false, false},
		{"less on a missing attribute", none.Lt("x", store.Int(5)), false, false},
		{"greater", none.Gt("n", store.Int(-6)), true, false},
		{"greater than the same", none.Gt("n", store.Int(5)), false, false},
		{"greater than a prefix", none.Gt("s", store.String("")), true, false},
		{"at most", none.Le("n", store.Int(5)), true, false},
		{"at most less", none.Le("n", store.Int(4)), false, false},
		{"at most on a missing attribute", none.Le("x", store.Int(5)), false, false},
		{"without", none.Without("x"), true, true},
		{"without what is there", none.Without("n"), false, true},
		{"all of them", store.Exists().Eq("n", store.Int(5)).Without("x"), true, false},
		{"all but the last", store.Exists().Eq("n", store.Int(5)).Without("n"), false, false},
	} {
		if got := store.Evaluate(c.cond, it); got != c.item {
			t.Errorf("%s: %v on the item", c.name, got)
		}
		if got := store.Evaluate(c.cond, nil); got != c.missing {
			t.Errorf("%s: %v on no item", c.name, got)
		}
	}
}

// A condition that is extended twice must not write into itself.
func TestConditionsAreValues(t *testing.T) {
	base := store.Exists().Eq("a", store.Int(1)).Eq("b", store.Int(1))
	one, two := base.Eq("c", store.Int(1)), base.Eq("d", store.Int(1))
	if one[3].Attr != "c" || two[3].Attr != "d" || len(base) != 3 {
		t.Fatalf("%v, %v, %v", base, one, two)
	}
}

func TestApply(t *testing.T) {
	old := store.NewItem(attr("a", store.Int(1)), attr("c", store.String("x")), attr("m", store.Int(math.MaxInt64)))
	for _, c := range []struct {
		name   string
		update store.Update
		on     store.Item
		want   store.Item
		err    error
	}{
		{"set on nothing", store.Update{Set: []store.Attr{attr("b", store.Int(2)), attr("a", store.Int(1))}}, nil,
			store.NewItem(attr("a", store.Int(1)), attr("b", store.Int(2))), nil},
		{"set between", store.Update{Set: []store.Attr{attr("b", store.Int(2))}}, old[:2],
			store.NewItem(old[0], attr("b", store.Int(2)), old[1]), nil},
		{"replace by another kind", store.Update{Set: []store.Attr{attr("c", store.Int(2))}}, old[:2],
			store.NewItem(old[0], attr("c", store.Int(2))), nil},
		{"remove", store.Update{Remove: []string{"a", "x"}}, old[:2], store.NewItem(old[1]), nil},
		{"remove from nothing", store.Update{Remove: []string{"a"}}, nil, store.Item{}, nil},
		{"add", store.Update{Add: []store.Increment{{Name: "a", N: -3}, {Name: "z", N: 4}}}, old[:2],
			store.NewItem(attr("a", store.Int(-2)), old[1], attr("z", store.Int(4))), nil},
		{"add to a string", store.Update{Add: []store.Increment{{Name: "c", N: 1}}}, old, nil, store.ErrInvalid},
		{"overflow", store.Update{Add: []store.Increment{{Name: "m", N: 1}}}, old, nil, store.ErrInvalid},
		{"all at once", store.Update{Set: []store.Attr{attr("b", store.Int(2))}, Remove: []string{"c", "m"},
			Add: []store.Increment{{Name: "a", N: 1}}}, old, store.NewItem(attr("a", store.Int(2)), attr("b", store.Int(2))),
			nil},
	} {
		before := slices.Clone(c.on)
		got, err := store.Apply(c.update, c.on)
		if !errors.Is(err, c.err) || (err == nil && !same(got, c.want)) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
		if !same(before, c.on) {
			t.Errorf("%s: the old item became %v", c.name, c.on)
		}
	}
}

// What an update makes is sorted and has the attributes that a map would have.
func TestApplyIsLikeAMap(t *testing.T) {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}), 0, 4, rapid.ID)
	rapid.Check(t, func(t *rapid.T) {
		want := map[string]int64{}
		var it store.Item
		for _, n := range names.Draw(t, "old") {
			want[n] = int64(len(want))
			it = store.NewItem(append(slices.Clone(it), attr(n, store.Int(want[n])))...)
		}
		var u store.Update
		for i, n := range names.Draw(t, "changed") {
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				u.Set, want[n] = append(u.Set, attr(n, store.Int(int64(100+i)))), int64(100+i)
			case 1:
				u.Remove = append(u.Remove, n)
				delete(want, n)
			case 2:
				u.Add, want[n] = append(u.Add, store.Increment{Name: n, N: 7}), want[n]+7
			}
		}
		got, err := store.Apply(u, it)
		if err != nil || got == nil || len(got) != len(want) {
			t.Fatalf("%v on %v: %v, %v", u, it, got, err)
		}
		for i, a := range got {
			if a.Value.Int64() != want[a.Name] || (i > 0 && got[i-1].Name >= a.Name) {
				t.Fatalf("%v on %v: %v", u, it, got)
			}
		}
	})
}

func TestNext(t *testing.T) {
	key := store.Key{Table: store.Users, PK: "a"}
	old, other := store.NewItem(attr("n", store.Int(1))), store.NewItem(attr("n", store.Int(2)))
	for op, want := range map[store.Op]store.Item{store.OpPut: other, store.OpUpdate: other, store.OpDelete: nil,
		store.OpCheck: old} {
		w := store.Write{Op: op, Key: key, Item: other, Update: store.Update{Set: other}}
		if got, err := w.Next(old); err != nil || !same(got, want) {
			t.Errorf("operation %d: %v, %v", op, got, err)
		}
	}
	large := store.NewItem(attr("s", store.String(strings.Repeat("x", 400<<10/2))))
	w := store.Write{Op: store.OpUpdate, Key: key,
		Update: store.Update{Set: []store.Attr{attr("t", store.String(strings.Repeat("x", 400<<10/2)))}}}
	if _, err := w.Next(large); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("an item too large: %v", err)
	}
	if _, err := w.Next(nil); err != nil {
		t.Error(err)
	}
}

func TestConditionError(t *testing.T) {
	err := &store.ConditionError{Failures: []store.Failure{{Index: 0, Name: "request"},
		{Index: 2, Name: "head", Current: store.Item{}}}}
	if err.Error() != "store: condition failed: request, head" {
		t.Error(err)
	}
	if f, ok := err.Failed("head"); !ok || f.Index != 2 {
		t.Error(f, ok)
	}
	if _, ok := err.Failed("member"); ok {
		t.Error("a condition failed that did not")
	}
}
