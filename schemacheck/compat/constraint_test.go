package compat

import (
	"slices"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/encoding/prototext"
)

func rules(t *testing.T, text string) *validate.FieldRules {
	t.Helper()
	if text == "" {
		return nil
	}
	r := &validate.FieldRules{}
	if err := prototext.Unmarshal([]byte(text), r); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r
}

const (
	same     = -1
	rewrite  = int(valuesSame)
	tighter  = int(valuesFewer)
	looser   = int(valuesMore)
	replaced = int(valuesOther)
)

func no() bool { return false }

// What a change of rules does to the values that pass, and mirrored for the change
// back (K-152: format and range tightening).
func TestFields(t *testing.T) {
	for _, c := range []struct {
		base, head string
		effect     int
	}{
		{``, ``, same},
		{``, `string{min_len: 0}`, rewrite},
		{``, `string{min_len: 1}`, tighter},
		{`string{min_len: 1}`, `string{min_len: 2}`, tighter},
		{`string{max_len: 5}`, `string{max_len: 4}`, tighter},
		{`string{len: 5}`, `string{min_len: 5 max_len: 5}`, rewrite},
		{`string{min_len: 5}`, `string{len: 5}`, tighter},
		{``, `string{max_bytes: 9}`, tighter},
		{``, `string{pattern: "a"}`, tighter},
		{`string{pattern: "a"}`, `string{pattern: "b"}`, replaced},
		{``, `string{uuid: true}`, tighter},
		{``, `string{uuid: false}`, same},
		{`string{uuid: true}`, `string{email: true}`, replaced},
		{`string{well_known_regex: KNOWN_REGEX_HTTP_HEADER_NAME strict: false}`,
			`string{well_known_regex: KNOWN_REGEX_HTTP_HEADER_NAME}`, tighter},
		{``, `string{prefix: "a"}`, tighter},
		{``, `string{const: "a"}`, tighter},
		{`string{const: "a"}`, `string{const: "b"}`, replaced},
		{``, `string{in: ["a"]}`, tighter},
		{`string{in: ["a", "b"]}`, `string{in: ["b"]}`, tighter},
		{`string{in: ["a", "b"]}`, `string{in: ["b", "a"]}`, same},
		{`string{in: ["a"]}`, `string{in: ["b"]}`, replaced},
		{``, `string{not_in: ["a"]}`, tighter},
		{`string{not_in: ["a"]}`, `string{not_in: ["a", "b"]}`, tighter},
		{``, `string{example: "a"}`, same},
		{`int32{gt: 0}`, `int32{gte: 1}`, rewrite},
		{`int32{gt: 0}`, `int32{gte: 2}`, tighter},
		{`int64{gt: 0}`, `int64{gt: 0 lt: 10}`, tighter},
		{`int64{gt: 10 lt: 0}`, `int64{gt: 10}`, tighter},        // outside of 0 to 10, then above 10
		{`int64{gt: 10 lt: 0}`, `int64{gt: 0 lt: 10}`, replaced}, // outside, then inside
		{`int64{gte: 3 lte: 3}`, `int64{gt: 2 lt: 4}`, rewrite},  // one value
		{`uint64{lte: 18446744073709551614}`, `uint64{lt: 18446744073709551615}`, rewrite},
		{`double{gt: 0}`, `double{gte: 0}`, looser},
		{`double{gt: 0}`, `double{gt: 0.5}`, tighter},
		{`double{gt: 1 lt: 1}`, ``, looser}, // all but 1
		{`int32{gt: 1 lt: 1}`, ``, looser},
		{`int32{gte: 2 lte: 2}`, `int32{gt: 1 lt: 3}`, rewrite},
		{`int32{gte: 2 lt: 2}`, `int32{gte: 2}`, tighter}, // all, then from 2
		{`int32{gt: 2 lte: 2}`, `int32{gt: 2}`, tighter},
		{`int32{gt: 1 lt: 3}`, `int32{gte: 1 lte: 3}`, looser},
		{`double{gte: 1 lt: 2}`, `double{gt: 1 lt: 2}`, tighter},
		{`double{lt: 2}`, `double{lte: 2}`, looser},
		{`double{gt: 1 lt: 2}`, `double{gt: 1 lt: 2 finite: false}`, same},
		{`double{lt: inf}`, `double{lt: 1}`, replaced},
		{``, `double{finite: true}`, tighter},
		{`duration{gt{seconds: 1}}`, `duration{gte{seconds: 1 nanos: 1}}`, rewrite},
		{`timestamp{lt{seconds: 9}}`, `timestamp{lt{seconds: 8}}`, tighter},
		{``, `timestamp{lt_now: true}`, tighter},
		{`timestamp{within{seconds: 9}}`, `timestamp{within{seconds: 8}}`, replaced},
		{``, `bool{const: true}`, tighter},
		{``, `enum{defined_only: true}`, tighter},
		{`enum{in: [1]}`, `enum{in: [1, 2]}`, looser},
		{``, `repeated{unique: true}`, tighter},
		{`repeated{max_items: 5}`, `repeated{max_items: 4}`, tighter},
		{`repeated{items{string{min_len: 1}}}`, `repeated{items{string{min_len: 2}}}`, tighter},
		{`map{keys{string{min_len: 1}}}`, `map{keys{string{min_len: 2}}}`, tighter},
		{`map{max_pairs: 5}`, `map{max_pairs: 4}`, tighter},
		{``, `required: true`, tighter},
		{``, `ignore: IGNORE_IF_ZERO_VALUE`, rewrite},
		{`string{min_len: 1} ignore: IGNORE_IF_ZERO_VALUE`, `string{min_len: 1}`, tighter},
		{`string{min_len: 1} ignore: IGNORE_ALWAYS`, `string{min_len: 1}`, tighter},
		{`string{min_len: 1} ignore: IGNORE_ALWAYS`, `string{min_len: 7} ignore: IGNORE_ALWAYS`, same},
		{``, `cel{id: "a" expression: "x"}`, tighter},
		{`cel{id: "a" expression: "x"}`, `cel{id: "a" expression: "y"}`, replaced},
		{`cel{id: "a" expression: "x"}`, `cel{id: "a" expression: "x"} cel{id: "a" expression: "y"}`, tighter},
		{`cel{id: "a" expression: "x"}`, `cel{id: "b" expression: "x"}`, rewrite},
		{`cel{id: "a" expression: "x" message: "m"}`, `cel{id: "a" expression: "x" message: "n"}`, same},
		{`cel_expression: "x"`, `cel{expression: "x"}`, same},
	} {
		check := func(base, head string, want int) {
			changes := fieldConstraints(rules(t, base), rules(t, head), no, no)
			switch {
			case want == same && len(changes) > 0:
				t.Errorf("%q to %q: %v", base, head, changes)
			case want != same && (len(changes) != 1 || int(changes[0].Effect) != want):
				t.Errorf("%q to %q: %v, want one of effect %d", base, head, changes, want)
			}
		}
		check(c.base, c.head, c.effect)
		back := map[int]int{tighter: looser, looser: tighter}
		if to, ok := back[c.effect]; ok {
			check(c.head, c.base, to)
		} else {
			check(c.head, c.base, c.effect)
		}
	}
}

// Two rules that change are two changes.
func TestSeveral(t *testing.T) {
	changes := fieldConstraints(rules(t, `string{min_len: 1 max_len: 5}`),
		rules(t, `string{min_len: 2 max_len: 9 pattern: "a"}`), no, no)
	var effects []constraintEffect
	for _, c := range changes {
		effects = append(effects, c.Effect)
	}
	if want := []constraintEffect{valuesFewer, valuesMore, valuesFewer}; !slices.Equal(effects,
		want) {
		t.Errorf("%v", changes)
	}
}

func TestMessages(t *testing.T) {
	message := func(text string) *validate.MessageRules {
		r := &validate.MessageRules{}
		if err := prototext.Unmarshal([]byte(text), r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, c := range []struct {
		base, head string
		effect     int
	}{
		{``, `cel{id: "a" expression: "x"}`, tighter},
		{`cel_expression: "x"`, ``, looser},
		{``, `oneof{fields: ["a", "b"]}`, tighter},
		{`oneof{fields: ["a", "b"]}`, `oneof{fields: ["a", "b"] required: true}`, tighter},
		{`oneof{fields: ["a", "b"] required: true}`, ``, looser},
		{`oneof{fields: ["a", "b"]}`, `oneof{fields: ["a", "b"]}`, same},
	} {
		changes := messageConstraints(message(c.base), message(c.head))
		if c.effect == same && len(changes) > 0 || c.effect != same &&
			(len(changes) != 1 || int(changes[0].Effect) != c.effect) {
			t.Errorf("%q to %q: %v", c.base, c.head, changes)
		}
	}
}

func TestRefusesUnknown(t *testing.T) {
	for text, want := range map[string]bool{
		``:                                    false,
		`enum{not_in: [3]}`:                   false,
		`enum{not_in: [0]}`:                   true,
		`enum{defined_only: true}`:            true,
		`enum{in: [1]}`:                       true,
		`enum{const: 1}`:                      true,
		`required: true`:                      true,
		`repeated{min_items: 1}`:              true,
		`repeated{max_items: 1}`:              false,
		`repeated{items{enum{in: [1]}}}`:      true,
		`map{values{enum{in: [1]}}}`:          true,
		`enum{in: [1]} ignore: IGNORE_ALWAYS`: false,
	} {
		if got := refusesUnknown(rules(t, text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
