package compat

import (
	"math"
	"math/big"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A bound is one end of an interval; a nil value is infinite.
type bound struct {
	value *big.Rat
	open  bool // the value itself is outside
}

type span struct{ from, to bound }

// numbers compares gt, gte, lt and lte as the set of numbers that they let pass.
func (c *collector) numbers(path string, b, h protoreflect.Message, done map[protoreflect.Name]bool) {
	names := []protoreflect.Name{"gt", "gte", "lt", "lte"}
	if b.Descriptor().Fields().ByName("gt") == nil {
		return
	}
	written := func(m protoreflect.Message) string {
		var parts []string
		for _, name := range names {
			if v, ok := get(m, name); ok {
				parts = append(parts, string(name)+" "+scalarText(v))
			}
		}
		return strings.Join(parts, ", ")
	}
	for _, name := range names {
		done[name] = true
	}
	bw, hw := written(b), written(h)
	if bw == hw {
		return
	}
	bs, ok1 := spans(b)
	hs, ok2 := spans(h)
	effect := valuesOther
	if ok1 && ok2 {
		fewer, more := within(hs, bs), within(bs, hs)
		switch {
		case fewer && more:
			effect = valuesSame
		case fewer:
			effect = valuesFewer
		case more:
			effect = valuesMore
		}
	}
	c.add(path, bw, hw, limitConstraint, effect)
}

// spans returns the numbers that pass: one interval, or two if the lower bound is
// above the upper one, which protovalidate reads as outside of both. False if a
// bound is no finite number.
func spans(m protoreflect.Message) ([]span, bool) {
	var low, high bound
	integer := false
	ok := true
	read := func(name protoreflect.Name, to *bound, open bool, step int64) {
		v, set := get(m, name)
		if !set {
			return
		}
		to.value, integer = rational(v)
		ok = ok && to.value != nil
		if to.open = open; open && integer && ok {
			to.value, to.open = new(big.Rat).Add(to.value, new(big.Rat).SetInt64(step)), false
		}
	}
	read("gt", &low, true, 1)
	read("gte", &low, false, 0)
	read("lt", &high, true, -1)
	read("lte", &high, false, 0)
	if !ok {
		return nil, false
	}
	if low.value != nil && high.value != nil && outside(m, low, high, integer) {
		return []span{{bound{}, high}, {low, bound{}}}, true
	}
	return []span{{low, high}}, true
}

// outside follows protovalidate: the bounds as written cross.
func outside(m protoreflect.Message, low, high bound, integer bool) bool {
	lower, upper := new(big.Rat).Set(low.value), new(big.Rat).Set(high.value)
	_, gt := get(m, "gt")
	_, lt := get(m, "lt")
	if integer && gt {
		lower.Sub(lower, big.NewRat(1, 1))
	}
	if integer && lt {
		upper.Add(upper, big.NewRat(1, 1))
	}
	if gt || lt {
		return upper.Cmp(lower) <= 0
	}
	return upper.Cmp(lower) < 0
}

// rational returns the exact value, nil for infinities and NaN; integer says that
// there is nothing between it and the next whole number.
func rational(v protoreflect.Value) (r *big.Rat, integer bool) {
	switch x := v.Interface().(type) {
	case int32:
		return new(big.Rat).SetInt64(int64(x)), true
	case int64:
		return new(big.Rat).SetInt64(x), true
	case uint32:
		return new(big.Rat).SetInt64(int64(x)), true
	case uint64:
		return new(big.Rat).SetInt(new(big.Int).SetUint64(x)), true
	case float32:
		return new(big.Rat).SetFloat64(float64(x)), false
	case float64:
		if math.IsInf(x, 0) || math.IsNaN(x) {
			return nil, false
		}
		return new(big.Rat).SetFloat64(x), false
	case protoreflect.Message:
		n, _ := nanos(x)
		return n, true
	}
	return nil, false
}

// within says whether each part of a lies in one part of b.
func within(a, b []span) bool {
	return !slices.ContainsFunc(a, func(x span) bool {
		return !slices.ContainsFunc(b, func(y span) bool {
			return above(x.from, y.from) && below(x.to, y.to)
		})
	})
}

func above(x, y bound) bool {
	switch {
	case y.value == nil:
		return true
	case x.value == nil:
		return false
	}
	d := x.value.Cmp(y.value)
	return d > 0 || d == 0 && (x.open || !y.open)
}

func below(x, y bound) bool {
	switch {
	case y.value == nil:
		return true
	case x.value == nil:
		return false
	}
	d := x.value.Cmp(y.value)
	return d < 0 || d == 0 && (x.open || !y.open)
}
