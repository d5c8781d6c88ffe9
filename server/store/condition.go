package store

import "strings"

// Condition is a conjunction of terms on one item; the empty Condition is
// always true.
type Condition []Term

// Term is one test. Exists and Absent check the item; the comparisons at one
// attribute: on a missing attribute (or item) NotEqual is true and every other
// comparison false. Less, Greater and AtMost compare integers with integers and
// strings, by their bytes, with strings; values of different kinds are not equal and not ordered.
type Term struct {
	Test  Test
	Attr  string
	Value Value
}

// Test is the kind of a term.
type Test uint8

// The closed set of tests.
const (
	TestExists Test = iota + 1
	TestAbsent
	TestEqual
	TestNotEqual
	TestLess
	TestGreater
	TestNoAttr // the attribute is missing; true for a missing item
	TestAtMost
)

// Exists holds if there is an item that has not expired.
func Exists() Condition { return Condition{{Test: TestExists}} }

// Absent holds if there is no item, or an expired one.
func Absent() Condition { return Condition{{Test: TestAbsent}} }

// Eq adds attribute = value.
func (c Condition) Eq(attr string, v Value) Condition { return c.and(TestEqual, attr, v) }

// Ne adds attribute ≠ value.
func (c Condition) Ne(attr string, v Value) Condition { return c.and(TestNotEqual, attr, v) }

// Lt adds attribute < value.
func (c Condition) Lt(attr string, v Value) Condition { return c.and(TestLess, attr, v) }

// Gt adds attribute > value.
func (c Condition) Gt(attr string, v Value) Condition { return c.and(TestGreater, attr, v) }

// Le adds attribute ≤ value.
func (c Condition) Le(attr string, v Value) Condition { return c.and(TestAtMost, attr, v) }

// Without adds that the attribute is missing.
func (c Condition) Without(attr string) Condition { return c.and(TestNoAttr, attr, Value{}) }

func (c Condition) and(t Test, attr string, v Value) Condition {
	return append(c[:len(c):len(c)], Term{Test: t, Attr: attr, Value: v})
}

// Evaluate is the one evaluator of conditions. current is nil if there is no
// item; expired items must be passed as nil.
func Evaluate(c Condition, current Item) bool {
	for _, t := range c {
		if !t.holds(current) {
			return false
		}
	}
	return true
}

func (t Term) holds(current Item) bool {
	switch t.Test {
	case TestExists:
		return current != nil
	case TestAbsent:
		return current == nil
	case TestNoAttr:
		return current.Get(t.Attr).Kind() == 0
	}
	v := current.Get(t.Attr)
	switch t.Test {
	case TestEqual:
		return v.Kind() != 0 && v.Equal(t.Value)
	case TestNotEqual:
		return !v.Equal(t.Value)
	case TestLess:
		cmp, ok := order(v, t.Value)
		return ok && cmp < 0
	case TestGreater:
		cmp, ok := order(v, t.Value)
		return ok && cmp > 0
	case TestAtMost:
		cmp, ok := order(v, t.Value)
		return ok && cmp <= 0
	}
	return false
}

func order(a, b Value) (cmp int, ok bool) {
	switch {
	case a.kind != b.kind:
		return 0, false
	case a.kind == KindInt:
		return cmpInt(a.num, b.num), true
	case a.kind == KindString:
		return strings.Compare(a.str, b.str), true
	}
	return 0, false
}

func cmpInt(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Update changes attributes of an item: Set replaces or adds, Remove deletes,
// Add adds to an integer (a missing attribute counts as 0). A name stands in at
// most one of them.
type Update struct {
	Set    []Attr
	Remove []string
	Add    []Increment
}

// Increment adds N to the integer attribute Name.
type Increment struct {
	Name string
	N    int64
}
